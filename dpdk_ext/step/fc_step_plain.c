#include "fc_lanes_plain.h"
#include "fc_send_plain.h"
/* The lanes come first. */
#include "fc_step_kernels.h"

const struct fc_step_twin fc_step_plain = { "plain", take, send, digest, roots, squares, NULL };
