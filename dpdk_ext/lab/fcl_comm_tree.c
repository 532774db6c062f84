/* What an all-reduce by a tree, or an NVLS tree, runs on a channel. */
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

/* All of `kernel->tree`, whose parent and children are ranks; 0 or a negative errno. */
static int begin_tree(struct fcl_comm *comm, struct fcl_kernel *kernel,
		      const struct fcl_slots *slots, uint64_t turns)
{
	const struct fcl_tree *tree = &kernel->tree;
	int result = 0;

	for (uint32_t child = 0; result == 0 && child < tree->count; child++)
		result = begin(comm, tree->children[child], kernel, slots, turns,
			       &kernel->child_in[child], &kernel->child_out[child]);
	if (result < 0 || tree->parent == FCL_TREE_NOBODY)
		return result;
	return begin(comm, tree->parent, kernel, slots, turns, &kernel->parent_in,
		     &kernel->parent_out);
}

int fcl_tree_begin(struct fcl_comm *comm, struct fcl_kernel *kernel, const struct fcl_slots *slots,
		   uint64_t turns)
{
	int result;

	fcl_tree_on(&comm->places, kernel->channel, &kernel->tree);
	result = begin_tree(comm, kernel, slots, turns);
	if (result < 0)
		return result;
	if (kernel->tree.parent == FCL_TREE_NOBODY) {
		kernel->body = fcl_kernel_tree_root;
		return 1;
	}
	kernel->body = fcl_kernel_tree_up;
	return 2;
}

/* An end inside the host, begun; NULL in `*kept` if it would lead to this rank itself. */
static int begin_in(struct fcl_comm *comm, uint32_t rank, uint32_t room,
		    const struct fcl_kernel *kernel, const struct fcl_slots *slots, uint64_t turns,
		    struct fcl_in **kept)
{
	*kept = NULL;
	if (rank == kernel->rank)
		return 0;
	*kept = fcl_link_in(comm, rank, room, kernel->channel);
	if (*kept == NULL)
		return -ENOTCONN;
	fcl_in_begin(*kept, slots, FCL_SIMPLE, 1, 1, turns);
	return 0;
}

static int begin_out(struct fcl_comm *comm, uint32_t rank, uint32_t room,
		     const struct fcl_kernel *kernel, const struct fcl_slots *slots,
		     struct fcl_out **kept)
{
	*kept = NULL;
	if (rank == kernel->rank)
		return 0;
	*kept = fcl_link_out(comm, rank, room, kernel->channel);
	if (*kept == NULL)
		return -ENOTCONN;
	fcl_out_begin(*kept, slots, FCL_SIMPLE, 1, 1);
	return 0;
}

/* A head's ends: of its host's other ranks, and of the tree over hosts. */
static int begin_head(struct fcl_comm *comm, struct fcl_kernel *kernel,
		      const struct fcl_slots *slots, uint64_t turns)
{
	const struct fcl_places *places = &comm->places;
	int result = 0;

	for (uint32_t i = 0; result == 0 && i < places->local_count; i++) {
		result = begin_in(comm, places->locals[i], FCL_OFFERS, kernel, slots, turns,
				  &kernel->offers_in[i]);
		if (result == 0)
			result = begin_out(comm, places->locals[i], FCL_RESULTS, kernel, slots,
					   &kernel->results_out[i]);
	}
	if (result < 0)
		return result;
	fcl_nvls_tree_on(places, kernel->channel, &kernel->tree);
	return begin_tree(comm, kernel, slots, turns);
}

int fcl_nvls_begin(struct fcl_comm *comm, struct fcl_kernel *kernel, const struct fcl_slots *slots,
		   uint64_t turns)
{
	const struct fcl_places *places = &comm->places;
	int result = 0;

	kernel->head = places->head;
	kernel->heads = places->heads;
	kernel->locals = places->local_count;
	for (uint32_t head = 0; result == 0 && head < places->heads; head++) {
		uint32_t rank = fcl_head_rank(places, places->hosts[places->rank], head);

		result =
			begin_out(comm, rank, FCL_OFFERS, kernel, slots, &kernel->offers_out[head]);
		if (result == 0)
			result = begin_in(comm, rank, FCL_RESULTS, kernel, slots, turns,
					  &kernel->results_in[head]);
	}
	if (result == 0 && places->head < places->heads)
		result = begin_head(comm, kernel, slots, turns);
	return result;
}
