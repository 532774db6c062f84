/* What NCCL's enqueue decides before a kernel starts: protocol, channels used, the part of each channel and
 * how that part is cut into loops of chunks, by NCCL version (nthreads matters up to 2.21). */
#pragma once

#include "fcl_comm.h"

struct fcl_geometry {
	uint64_t buffer_bytes[3]; /* by enum fcl_protocol: 8 steps each, in this order in memory */
};

struct fcl_request {
	uint32_t version; /* 21900 for 2.19.0 */
	uint32_t ranks, channels, protocol;
	uint32_t kind;          /* enum fcl_kind, not send or recv */
	uint32_t element_bytes; /* 1 for all_gather and broadcast: they are converted to bytes */
	uint64_t count; /* elements: of the tensor; per rank for gathers and reduce_scatter */
	int tree;       /* an all-reduce by the double binary tree (fcl_tree.h) */
	uint32_t hosts; /* of all ranks */
	uint32_t heads; /* of each, for an all-reduce by NVLS trees (fcl_nvls.h); else 0 */
};

struct fcl_part {
	uint64_t first, count; /* elements */
};

enum { FCL_MOST_CHANNELS = 32 };

struct fcl_plan {
	struct fcl_request request;
	uint32_t threads;     /* of the kernel */
	uint32_t used;        /* channels that may have a part */
	uint32_t chunk_steps; /* FIFO steps of a chunk */
	uint32_t slice_steps; /* and of each of its messages */
	uint64_t chunk;       /* most elements of a chunk */
	int interleaved; /* up to 2.19 channels take turns inside a loop; `parts` is the whole then */
	struct fcl_part parts[FCL_MOST_CHANNELS];
};

/* One turn of a kernel's outer loop: chunk k is [start + k * stride, + chunk) cut at `limit`. */
struct fcl_loop {
	uint64_t start, chunk, stride, limit;
	uint64_t next; /* where the following turn begins */
};

void fcl_geometry_set(struct fcl_geometry *geometry, uint64_t simple_bytes);
/* Our own thresholds, for FCL_ANY_PROTOCOL; `bytes` is the larger of all a rank sends or receives. */
uint32_t fcl_protocol_for(uint64_t bytes);
void fcl_plan_make(struct fcl_plan *plan, const struct fcl_request *request,
		   const struct fcl_geometry *geometry);
/* Blocks of `count` elements an operation moves: one per rank for all_gather and reduce_scatter. */
uint32_t fcl_blocks(const struct fcl_request *request);
/* 2.20 and 2.21 round parts and last chunks up to this many elements. */
uint64_t fcl_alignment(const struct fcl_plan *plan);
/* The first turn of `channel` (0: it has none), and the one after `loop`. */
int fcl_loop_first(const struct fcl_plan *plan, uint32_t channel, struct fcl_loop *loop);
int fcl_loop_next(const struct fcl_plan *plan, uint32_t channel, struct fcl_loop *loop);
/* Turns of `channel` in all. */
uint64_t fcl_loop_count(const struct fcl_plan *plan, uint32_t channel);
