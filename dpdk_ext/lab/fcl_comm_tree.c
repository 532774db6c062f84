/* The connections of a communicator's trees that its ring has not, and what an all-reduce by them runs. */
#include <errno.h>

#include "fcl_comm_state.h"
#include "fcl_error.h"
#include "fcl_round.h"

static int is_next(const struct fcl_comm *comm, uint32_t from, uint32_t to)
{
	return (from + 1) % comm->settings.ranks == to;
}

uint32_t fcl_comm_branches(const struct fcl_comm *comm, uint32_t *ranks)
{
	uint32_t count = 0;

	for (uint32_t rank = 0; comm->settings.tree_below && rank < comm->settings.ranks; rank++)
		for (uint32_t channel = 0; channel < least(2, comm->settings.channels); channel++) {
			struct fcl_tree tree;
			int linked;

			fcl_tree_of(channel, comm->settings.rank, comm->settings.ranks, &tree);
			linked = tree.parent == rank;
			for (uint32_t child = 0; child < tree.count; child++)
				linked |= tree.children[child] == rank;
			if (linked && (count == 0 || ranks[count - 1] != rank))
				ranks[count++] = rank;
		}
	return count;
}

/* What comes from a rank on a channel: by the ring, if it comes from there. */
static struct fcl_in *in_from(struct fcl_comm *comm, uint32_t rank, uint32_t channel)
{
	if (is_next(comm, rank, comm->settings.rank))
		return &comm->ring.in[channel];
	return &fcl_branch_find(comm, rank)->ends.in[channel];
}

static struct fcl_out *out_to(struct fcl_comm *comm, uint32_t rank, uint32_t channel)
{
	if (is_next(comm, comm->settings.rank, rank))
		return &comm->ring.out[channel];
	return &fcl_branch_find(comm, rank)->ends.out[channel];
}

int fcl_tree_ready(struct fcl_comm *comm)
{
	uint32_t ranks[FCL_MOST_BRANCHES];
	uint32_t count = fcl_comm_branches(comm, ranks);

	for (uint32_t i = 0; i < count; i++) {
		struct fcl_peer *branch = fcl_branch_find(comm, ranks[i]);

		if (branch == NULL || !branch->ends.connected)
			return fcl_fail(ENOTCONN, "there is no connection to rank %u of the tree",
					ranks[i]);
	}
	return 0;
}

uint32_t fcl_tree_begin(struct fcl_comm *comm, struct fcl_kernel *kernel,
			const struct fcl_slots *slots, uint64_t turns)
{
	struct fcl_tree *tree = &kernel->tree;
	uint32_t protocol = kernel->protocol, channel = kernel->channel;

	fcl_tree_of(channel, kernel->rank, kernel->ranks, tree);
	for (uint32_t child = 0; child < tree->count; child++) {
		kernel->child_in[child] = in_from(comm, tree->children[child], channel);
		kernel->child_out[child] = out_to(comm, tree->children[child], channel);
		fcl_in_begin(kernel->child_in[child], slots, protocol, 1, 1, turns);
		fcl_out_begin(kernel->child_out[child], slots, protocol, 1, 1);
	}
	if (tree->parent == FCL_TREE_NOBODY) {
		kernel->body = fcl_kernel_tree_root;
		return 1;
	}
	kernel->parent_in = in_from(comm, tree->parent, channel);
	kernel->parent_out = out_to(comm, tree->parent, channel);
	fcl_in_begin(kernel->parent_in, slots, protocol, 1, 1, turns);
	fcl_out_begin(kernel->parent_out, slots, protocol, 1, 1);
	kernel->body = fcl_kernel_tree_up;
	return 2;
}
