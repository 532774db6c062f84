/* runRing of the device code (src/device/all_reduce.h and its neighbours): what a channel's block does,
 * one turn of the outer loop per set of chunks. Chunks of an all-reduce have the numbers of places in the
 * channel's ring, blocks of the others those of ranks. */
#include "fcl_kernel.h"

static uint32_t next_to(const struct fcl_kernel *kernel)
{
	return (kernel->index + 1) % kernel->ranks;
}

/* The place `behind` ranks before this one. */
static uint32_t before(const struct fcl_kernel *kernel, uint32_t behind)
{
	return (kernel->index + kernel->ranks - behind) % kernel->ranks;
}

/* Where the block of the rank `behind` places before begins, in elements. */
static uint64_t block_before(const struct fcl_kernel *kernel, uint32_t behind)
{
	return kernel->order[before(kernel, behind)] * kernel->plan->request.count;
}

static uint64_t start_of(const struct fcl_loop *loop, uint32_t chunk)
{
	return loop->start + chunk * loop->stride;
}

static int64_t size_of(const struct fcl_loop *loop, uint32_t chunk)
{
	int64_t left = (int64_t)loop->limit - (int64_t)start_of(loop, chunk);

	return left < (int64_t)loop->chunk ? left : (int64_t)loop->chunk;
}

void fcl_kernel_all_reduce(struct fcl_kernel *kernel)
{
	struct fcl_loop loop;
	int more = fcl_loop_first(kernel->plan, kernel->channel, &loop);

	for (; more; more = fcl_loop_next(kernel->plan, kernel->channel, &loop)) {
		uint32_t chunk = before(kernel, 1);
		uint64_t at = start_of(&loop, chunk);

		fcl_prim_send(kernel, at, size_of(&loop, chunk));
		for (uint32_t behind = 2; behind < kernel->ranks; behind++) {
			chunk = before(kernel, behind);
			fcl_prim_recv_reduce_send(kernel, start_of(&loop, chunk),
						  size_of(&loop, chunk));
		}
		chunk = kernel->index;
		at = start_of(&loop, chunk);
		fcl_prim_recv_reduce_copy_send(kernel, at, at, size_of(&loop, chunk));
		for (uint32_t behind = 1; behind < kernel->ranks - 1; behind++) {
			chunk = before(kernel, behind);
			fcl_prim_recv_copy_send(kernel, start_of(&loop, chunk),
						size_of(&loop, chunk));
		}
		chunk = next_to(kernel);
		fcl_prim_recv(kernel, start_of(&loop, chunk), size_of(&loop, chunk));
	}
}

void fcl_kernel_broadcast(struct fcl_kernel *kernel)
{
	struct fcl_loop loop;
	int more = fcl_loop_first(kernel->plan, kernel->channel, &loop);

	for (; more; more = fcl_loop_next(kernel->plan, kernel->channel, &loop)) {
		int64_t count = size_of(&loop, 0);

		if (kernel->rank == kernel->root)
			fcl_prim_copy_send(kernel, loop.start, loop.start, count);
		else if (kernel->order[next_to(kernel)] == kernel->root)
			fcl_prim_recv(kernel, loop.start, count);
		else
			fcl_prim_recv_copy_send(kernel, loop.start, count);
	}
}

void fcl_kernel_all_gather(struct fcl_kernel *kernel)
{
	struct fcl_loop loop;
	int more = fcl_loop_first(kernel->plan, kernel->channel, &loop);

	for (; more; more = fcl_loop_next(kernel->plan, kernel->channel, &loop)) {
		int64_t count = size_of(&loop, 0);

		fcl_prim_copy_send(kernel, loop.start, block_before(kernel, 0) + loop.start, count);
		for (uint32_t behind = 1; behind < kernel->ranks - 1; behind++)
			fcl_prim_recv_copy_send(kernel, block_before(kernel, behind) + loop.start,
						count);
		fcl_prim_recv(kernel, block_before(kernel, kernel->ranks - 1) + loop.start, count);
	}
}

void fcl_kernel_reduce_scatter(struct fcl_kernel *kernel)
{
	struct fcl_loop loop;
	int more = fcl_loop_first(kernel->plan, kernel->channel, &loop);

	for (; more; more = fcl_loop_next(kernel->plan, kernel->channel, &loop)) {
		int64_t count = size_of(&loop, 0);

		fcl_prim_send(kernel, block_before(kernel, 1) + loop.start, count);
		for (uint32_t behind = 2; behind < kernel->ranks; behind++)
			fcl_prim_recv_reduce_send(kernel, block_before(kernel, behind) + loop.start,
						  count);
		fcl_prim_recv_reduce_copy(kernel, block_before(kernel, 0) + loop.start, loop.start,
					  count);
	}
}

uint32_t fcl_kernel_receives(uint32_t kind, uint32_t rank, uint32_t ranks, uint32_t root)
{
	if (kind == FCL_ALL_REDUCE)
		return 2 * (ranks - 1);
	if (kind == FCL_BROADCAST)
		return rank != root;
	return ranks - 1;
}
