/* NCCL's line formats, as in the payload of a write. */
#ifndef FC_NCCL_H
#define FC_NCCL_H

#include <stdint.h>

/* src/include/device.h, union ncclLLFifoLine: 4 bytes data, 4 bytes flag, twice. */
struct fc_ll_line {
	uint32_t data1, flag1, data2, flag2;
};
_Static_assert(sizeof(struct fc_ll_line) == 16, "an LL line is 16 bytes");

/* src/include/device.h, NCCL_LL128_*: 120 bytes data, 8 bytes flag; a warp moves 16 lines at once. */
enum fc_ll128_sizes {
	FC_LL128_LINE_BYTES = 128,
	FC_LL128_LINE_DATA = 120,
	FC_LL128_GROUP_LINES = 16,
	FC_LL128_GROUP_BYTES = 2048,
	FC_LL128_GROUP_DATA = 1920,
};

#endif
