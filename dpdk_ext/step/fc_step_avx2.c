#if defined(__x86_64__)
#include "fc_lanes_avx2.h"
#include "fc_send_avx2.h"
/* The lanes come first. */
#include "fc_step_kernels.h"
/* The kernels come first. */
#include "fc_step_flow.h"

const struct fc_step_twin fc_step_avx2 = { "avx2", take, send, digest, roots, squares, flow };
#endif
