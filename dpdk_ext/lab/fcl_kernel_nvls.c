/* The NVLS tree of the device code (src/device/all_reduce.h), with ranks in the place of the switch: each gives
 * every head its share of a chunk; a head adds to its own what the other ranks of its host gave, in their
 * order, then what its children in the tree tell, in the order of their hosts; the sum comes down the tree,
 * and from the heads to all ranks. Each direction is a kernel of its own, so that nothing waits in a ring. */
#include <string.h>

#include "fcl_kernel.h"

static uint64_t start_of(const struct fcl_loop *loop, uint32_t head)
{
	return loop->start + head * loop->stride;
}

static int64_t count_of(const struct fcl_loop *loop, uint32_t head)
{
	int64_t left = (int64_t)loop->limit - (int64_t)start_of(loop, head);

	return left < (int64_t)loop->chunk ? left : (int64_t)loop->chunk;
}

void fcl_kernel_nvls_offers(struct fcl_kernel *kernel)
{
	struct fcl_loop loop;
	int more = fcl_loop_first(kernel->plan, kernel->channel, &loop);

	for (; more; more = fcl_loop_next(kernel->plan, kernel->channel, &loop))
		for (uint32_t head = 0; head < kernel->heads; head++) {
			kernel->to = kernel->offers_out[head];
			if (kernel->to != NULL)
				fcl_prim_send(kernel, start_of(&loop, head), count_of(&loop, head));
		}
}

void fcl_kernel_nvls_results(struct fcl_kernel *kernel)
{
	struct fcl_loop loop;
	int more = fcl_loop_first(kernel->plan, kernel->channel, &loop);

	for (; more; more = fcl_loop_next(kernel->plan, kernel->channel, &loop))
		for (uint32_t head = 0; head < kernel->heads; head++) {
			kernel->from = kernel->results_in[head];
			if (kernel->from != NULL)
				fcl_prim_recv(kernel, start_of(&loop, head), count_of(&loop, head));
		}
}

/* Adds what `from` tells to the sum so far, which is the own part at first; the last sum goes to the parent,
 * if there is one, and not into the output. */
static void add(struct fcl_kernel *kernel, struct fcl_in *from, uint64_t at, int64_t count,
		int to_parent)
{
	kernel->from = from;
	if (to_parent)
		fcl_prim_recv_reduce_send(kernel, at, count);
	else
		fcl_prim_recv_reduce_copy(kernel, at, at, count);
	kernel->input = kernel->output;
}

/* A host has another rank than its head, so there is something to add. */
static void gather(struct fcl_kernel *kernel, uint64_t at, int64_t count, int to_parent)
{
	const uint8_t *input = kernel->input;
	uint32_t left = kernel->locals - 1 + kernel->tree.count;

	for (uint32_t local = 0; local < kernel->locals; local++)
		if (kernel->offers_in[local] != NULL)
			add(kernel, kernel->offers_in[local], at, count, --left == 0 && to_parent);
	for (uint32_t child = 0; child < kernel->tree.count; child++)
		add(kernel, kernel->child_in[child], at, count, --left == 0 && to_parent);
	kernel->input = input;
}

/* The sum is in the output. */
static void spread(struct fcl_kernel *kernel, uint64_t at, int64_t count)
{
	const uint8_t *input = kernel->input;

	kernel->input = kernel->output;
	for (uint32_t child = 0; child < kernel->tree.count; child++) {
		kernel->to = kernel->child_out[child];
		fcl_prim_send(kernel, at, count);
	}
	for (uint32_t local = 0; local < kernel->locals; local++) {
		kernel->to = kernel->results_out[local];
		if (kernel->to != NULL)
			fcl_prim_send(kernel, at, count);
	}
	kernel->input = input;
}

void fcl_kernel_nvls_up(struct fcl_kernel *kernel)
{
	struct fcl_loop loop;
	int more = fcl_loop_first(kernel->plan, kernel->channel, &loop);

	for (; more; more = fcl_loop_next(kernel->plan, kernel->channel, &loop)) {
		kernel->to = kernel->parent_out;
		gather(kernel, start_of(&loop, kernel->head), count_of(&loop, kernel->head), 1);
	}
}

void fcl_kernel_nvls_down(struct fcl_kernel *kernel)
{
	struct fcl_loop loop;
	int more = fcl_loop_first(kernel->plan, kernel->channel, &loop);

	for (; more; more = fcl_loop_next(kernel->plan, kernel->channel, &loop)) {
		uint64_t at = start_of(&loop, kernel->head);
		int64_t count = count_of(&loop, kernel->head);

		kernel->from = kernel->parent_in;
		fcl_prim_recv(kernel, at, count);
		spread(kernel, at, count);
	}
}

void fcl_kernel_nvls_root(struct fcl_kernel *kernel)
{
	struct fcl_loop loop;
	int more = fcl_loop_first(kernel->plan, kernel->channel, &loop);

	for (; more; more = fcl_loop_next(kernel->plan, kernel->channel, &loop)) {
		uint64_t at = start_of(&loop, kernel->head);
		int64_t count = count_of(&loop, kernel->head);

		gather(kernel, at, count, 0);
		spread(kernel, at, count);
	}
}
