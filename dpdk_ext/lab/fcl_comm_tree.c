/* What an all-reduce by a tree runs on a channel. */
#include <errno.h>

#include "fcl_comm_state.h"

/* Both directions to one rank of the tree; 0 or a negative errno. */
static int begin(struct fcl_comm *comm, uint32_t rank, const struct fcl_kernel *kernel,
		 const struct fcl_slots *slots, uint64_t turns, struct fcl_in **in,
		 struct fcl_out **out)
{
	*in = fcl_link_in(comm, rank, FCL_FLOWS, kernel->channel);
	*out = fcl_link_out(comm, rank, FCL_FLOWS, kernel->channel);
	if (*in == NULL || *out == NULL)
		return -ENOTCONN;
	fcl_in_begin(*in, slots, kernel->protocol, 1, 1, turns);
	fcl_out_begin(*out, slots, kernel->protocol, 1, 1);
	return 0;
}

int fcl_tree_begin(struct fcl_comm *comm, struct fcl_kernel *kernel, const struct fcl_slots *slots,
		   uint64_t turns)
{
	struct fcl_tree *tree = &kernel->tree;
	int result = 0;

	fcl_tree_of(kernel->channel, kernel->rank, kernel->ranks, tree);
	for (uint32_t child = 0; result == 0 && child < tree->count; child++)
		result = begin(comm, tree->children[child], kernel, slots, turns,
			       &kernel->child_in[child], &kernel->child_out[child]);
	if (result < 0)
		return result;
	if (tree->parent == FCL_TREE_NOBODY) {
		kernel->body = fcl_kernel_tree_root;
		return 1;
	}
	result = begin(comm, tree->parent, kernel, slots, turns, &kernel->parent_in,
		       &kernel->parent_out);
	kernel->body = fcl_kernel_tree_up;
	return result < 0 ? result : 2;
}
