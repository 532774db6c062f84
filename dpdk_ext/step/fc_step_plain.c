#include "fc_lanes_plain.h"
#include "fc_write_out_plain.h"
/* The lanes come first. */
#include "fc_step_kernels.h"

const struct fc_step_variant fc_step_plain = { "plain", take, send, digest, roots, squares, NULL };
