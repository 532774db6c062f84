#if defined(__x86_64__)
#include "fc_lanes_avx512.h"
#include "fc_write_out_avx512.h"
/* The lanes come first. */
#include "fc_step_kernels.h"
/* The kernels come first. */
#include "fc_step_interleaved.h"

const struct fc_step_variant fc_step_avx512 = {
	"avx512", take, send, digest, roots, squares, flow
};
#endif
