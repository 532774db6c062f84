/* runTreeSplit of the device code (src/device/all_reduce.h): parts go up, the sum comes down, at once; the
 * root does both. A rank's part of a chunk lies in the output until the sum takes its place. */
#include "fcl_kernel.h"

static int64_t count_of(const struct fcl_loop *loop)
{
	int64_t left = (int64_t)loop->limit - (int64_t)loop->start;

	return left < (int64_t)loop->chunk ? left : (int64_t)loop->chunk;
}

/* Adds what the children tell; of all but the last `to_parent` nothing goes on yet. */
static void gather(struct fcl_kernel *kernel, uint64_t at, int64_t count, int to_parent)
{
	const uint8_t *input = kernel->input;

	for (uint32_t child = 0; child < kernel->tree.count; child++) {
		kernel->from = kernel->child_in[child];
		if (child + 1 == kernel->tree.count && to_parent)
			fcl_prim_recv_reduce_send(kernel, at, count);
		else
			fcl_prim_recv_reduce_copy(kernel, at, at, count);
		kernel->input = kernel->output;
	}
	kernel->input = input;
}

void fcl_kernel_tree_up(struct fcl_kernel *kernel)
{
	struct fcl_loop loop;
	int more = fcl_loop_first(kernel->plan, kernel->channel, &loop);

	for (; more; more = fcl_loop_next(kernel->plan, kernel->channel, &loop)) {
		kernel->to = kernel->parent_out;
		if (kernel->tree.count == 0)
			fcl_prim_send(kernel, loop.start, count_of(&loop));
		else
			gather(kernel, loop.start, count_of(&loop), 1);
	}
}

/* The sum is in the output. */
static void scatter(struct fcl_kernel *kernel, uint64_t at, int64_t count)
{
	const uint8_t *input = kernel->input;

	kernel->input = kernel->output;
	for (uint32_t child = 0; child < kernel->tree.count; child++) {
		kernel->to = kernel->child_out[child];
		fcl_prim_send(kernel, at, count);
	}
	kernel->input = input;
}

void fcl_kernel_tree_down(struct fcl_kernel *kernel)
{
	struct fcl_loop loop;
	int more = fcl_loop_first(kernel->plan, kernel->channel, &loop);

	kernel->from = kernel->parent_in;
	for (; more; more = fcl_loop_next(kernel->plan, kernel->channel, &loop)) {
		int64_t count = count_of(&loop);

		fcl_prim_recv(kernel, loop.start, count);
		scatter(kernel, loop.start, count);
	}
}

void fcl_kernel_tree_root(struct fcl_kernel *kernel)
{
	struct fcl_loop loop;
	int more = fcl_loop_first(kernel->plan, kernel->channel, &loop);

	for (; more; more = fcl_loop_next(kernel->plan, kernel->channel, &loop)) {
		gather(kernel, loop.start, count_of(&loop), 0);
		scatter(kernel, loop.start, count_of(&loop));
	}
}
