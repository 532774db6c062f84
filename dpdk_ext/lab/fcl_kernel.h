/* NCCL's kernels as coroutines: one per channel, written as loops of primitives like the device code,
 * each giving way to the node's thread where a GPU's block would spin on a step counter. */
#pragma once

#include <ucontext.h>

#include "fcl_reduce.h"
#include "fcl_ring.h"
#include "fcl_tree.h"

struct fcl_kernel {
	/* Set before the start. */
	void (*body)(struct fcl_kernel *kernel);
	const struct fcl_plan *plan; /* not for send and recv */
	struct fcl_arithmetic arithmetic;
	struct fcl_in *from;  /* previous rank, or the peer */
	struct fcl_out *to;   /* next rank, or the peer */
	const uint8_t *input; /* of this channel where send and recv */
	uint8_t *output;
	uint8_t *scratch; /* of the node: a chunk of LL128, used between two waits only */
	uint64_t bytes;   /* send, recv: of this channel's part, and of each message */
	uint64_t message_bytes;
	uint32_t kind, channel, rank, ranks, root;
	const uint32_t *order; /* the channel's ring, from rank 0 on */
	uint32_t index;        /* this rank's place in it */
	uint32_t protocol, element_bytes, slices;
	struct fcl_tree tree; /* of this channel, where it goes by one */
	struct fcl_in *parent_in, *child_in[FCL_TREE_CHILDREN];
	struct fcl_out *parent_out, *child_out[FCL_TREE_CHILDREN];

	/* Of an NVLS tree: this rank's head (`heads`: none), and the ends inside the host; NULL to itself. */
	uint32_t head, heads, locals;
	struct fcl_out *offers_out[FCL_MOST_GPUS],
		*results_out[FCL_MOST_GPUS];                                 /* by head; by rank */
	struct fcl_in *offers_in[FCL_MOST_GPUS], *results_in[FCL_MOST_GPUS]; /* by rank; by head */

	/* Read by the scheduler. */
	int running, waits_for_message, waits_for_slot;
	int failed;        /* negative errno, sentence in fcl_error() */
	uint64_t messages; /* sent */

	ucontext_t context, scheduler;
	void *stack;
};

enum { FCL_SCRATCH_BYTES = 1 << 20 };

/* The kernel's stack; 0 or a negative errno. */
int fcl_kernel_open(struct fcl_kernel *kernel);
void fcl_kernel_close(struct fcl_kernel *kernel);
void fcl_kernel_start(struct fcl_kernel *kernel);
/* Runs until it must wait or is done (running == 0); 1 when it ran at all, or its negative errno. */
int fcl_kernel_progress(struct fcl_kernel *kernel);

/* Primitives. `own` and `out` are of `count` elements; counts may be 0 or less where a chunk lies
 * past the end: its messages are sent all the same. */
void fcl_prim_send(struct fcl_kernel *kernel, uint64_t own, int64_t count);
void fcl_prim_copy_send(struct fcl_kernel *kernel, uint64_t own, uint64_t out, int64_t count);
void fcl_prim_recv(struct fcl_kernel *kernel, uint64_t out, int64_t count);
void fcl_prim_recv_copy_send(struct fcl_kernel *kernel, uint64_t out, int64_t count);
void fcl_prim_recv_reduce_send(struct fcl_kernel *kernel, uint64_t own, int64_t count);
void fcl_prim_recv_reduce_copy(struct fcl_kernel *kernel, uint64_t own, uint64_t out,
			       int64_t count);
void fcl_prim_recv_reduce_copy_send(struct fcl_kernel *kernel, uint64_t own, uint64_t out,
				    int64_t count);

/* Bodies. */
void fcl_kernel_all_reduce(struct fcl_kernel *kernel);
void fcl_kernel_broadcast(struct fcl_kernel *kernel);
void fcl_kernel_all_gather(struct fcl_kernel *kernel);
void fcl_kernel_reduce_scatter(struct fcl_kernel *kernel);
void fcl_kernel_tree_up(struct fcl_kernel *kernel);
void fcl_kernel_tree_down(struct fcl_kernel *kernel);
void fcl_kernel_tree_root(struct fcl_kernel *kernel);
void fcl_kernel_nvls_offers(struct fcl_kernel *kernel);
void fcl_kernel_nvls_up(struct fcl_kernel *kernel);
void fcl_kernel_nvls_down(struct fcl_kernel *kernel);
void fcl_kernel_nvls_root(struct fcl_kernel *kernel);
void fcl_kernel_nvls_results(struct fcl_kernel *kernel);
void fcl_kernel_send(struct fcl_kernel *kernel);
void fcl_kernel_recv(struct fcl_kernel *kernel);

/* Messages a body receives in one turn of its outer loop. */
uint32_t fcl_kernel_receives(uint32_t kind, uint32_t rank, uint32_t ranks, uint32_t root);
