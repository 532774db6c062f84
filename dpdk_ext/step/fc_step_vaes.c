#if defined(__x86_64__)
#define FC_VAES
#include "fc_lanes_avx2.h"
#include "fc_write_out_avx2.h"
/* The lanes come first. */
#include "fc_step_kernels.h"
/* The kernels come first. */
#include "fc_step_interleaved.h"

const struct fc_step_variant fc_step_vaes = { "vaes", take, send, digest, roots, squares, flow };
#endif
