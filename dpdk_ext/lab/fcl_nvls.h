/* NCCL's NVLS tree, an all-reduce: the switch of a node sums what its GPUs have, each head (a GPU for each NIC)
 * a share of every chunk, and the heads of all nodes with one number make trees over the nodes. Here the sum
 * of a host is made by its heads, of what its ranks put into shared memory. */
#pragma once

#include "fcl_enqueue.h"

/* Turn of a channel's outer loop that begins at `at`: head h has chunk h (src/device/all_reduce.h,
 * src/enqueue.cc, calcCollChunking). */
void fcl_nvls_loop(const struct fcl_plan *plan, uint32_t channel, uint64_t at,
		   struct fcl_loop *loop);
/* Whether NCCL sums such elements in the switch (src/include/device.h, ncclNvlsSupported). */
int fcl_nvls_supports(uint32_t type, uint32_t reduction);
