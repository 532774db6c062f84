#include "fcl_places.h"

#include <errno.h>
#include <stdlib.h>

#include "fcl_error.h"

static int check(const struct fcl_places *places)
{
	for (uint32_t channel = 0; channel < places->channels; channel++) {
		const uint32_t *order = fcl_order(places, channel);
		uint64_t sum = 0;

		for (uint32_t i = 0; i < places->ranks; i++) {
			if (order[i] >= places->ranks)
				return fcl_fail(EINVAL, "the ring of channel %u names rank %u",
						channel, order[i]);
			sum += order[i];
		}
		if (order[0] != 0 || sum != (uint64_t)places->ranks * (places->ranks - 1) / 2 ||
		    order[places->indices[channel]] != places->rank)
			return fcl_fail(EINVAL, "channel %u has no ring of all ranks from rank 0",
					channel);
	}
	return 0;
}

static int is_flat(const struct fcl_places *places)
{
	for (uint32_t rank = 0; rank < places->ranks; rank++)
		for (uint32_t other = 0; other < rank; other++)
			if (places->hosts[rank] == places->hosts[other])
				return 0;
	return 1;
}

static void fill(struct fcl_places *places, const struct fcl_comm_settings *settings)
{
	for (uint32_t rank = 0; rank < places->ranks; rank++)
		places->hosts[rank] = settings->hosts ? settings->hosts[rank] : rank;
	for (uint32_t channel = 0; channel < places->channels; channel++)
		for (uint32_t i = 0; i < places->ranks; i++) {
			uint32_t at = channel * places->ranks + i;

			places->orders[at] = settings->orders ? settings->orders[at] : i;
			if (places->orders[at] == places->rank)
				places->indices[channel] = i;
		}
	places->flat = settings->hosts == NULL || is_flat(places);
	places->found = settings->found ? settings->found : (places->channels + 1) / 2;
}

/* By host, and every host with as many ranks. */
static int fill_chains(struct fcl_places *places, const struct fcl_comm_settings *settings)
{
	uint64_t size = (uint64_t)places->channels * places->ranks;

	if (settings->chains == NULL)
		return 0;
	places->chains = calloc(size, sizeof *places->chains);
	if (places->chains == NULL)
		return fcl_fail(ENOMEM, "no memory for chains of %u ranks", places->ranks);
	for (uint64_t i = 0; i < size; i++) {
		uint32_t rank = settings->chains[i];
		uint64_t at = i % places->ranks;
		uint32_t gpus = places->ranks / places->host_count;

		if (rank >= places->ranks || places->ranks % places->host_count != 0 ||
		    places->hosts[rank] != at / gpus)
			return fcl_fail(EINVAL, "place %u of a chain is on another host",
					(unsigned)at);
		places->chains[i] = rank;
	}
	return 0;
}

static int fill_heads(struct fcl_places *places, const struct fcl_comm_settings *settings)
{
	uint32_t own = places->hosts[places->rank], total;

	for (uint32_t rank = 0; rank < places->ranks; rank++) {
		if (places->hosts[rank] >= places->ranks)
			return fcl_fail(EINVAL, "rank %u has no host", rank);
		if (places->hosts[rank] >= places->host_count)
			places->host_count = places->hosts[rank] + 1;
	}
	for (uint32_t rank = 0; settings->heads > 0 && rank < places->ranks; rank++) {
		if (places->hosts[rank] != own)
			continue;
		if (places->local_count == FCL_MOST_GPUS)
			return fcl_fail(EINVAL, "more than %d ranks a host", FCL_MOST_GPUS);
		places->locals[places->local_count++] = rank;
	}
	if (settings->heads > places->local_count)
		return fcl_fail(EINVAL, "%u heads of %u ranks", settings->heads,
				places->local_count);
	places->heads = places->head = settings->heads;
	total = places->heads * places->host_count;
	places->head_ranks = calloc(total + 1, sizeof *places->head_ranks);
	if (places->head_ranks == NULL)
		return fcl_fail(ENOMEM, "no memory for %u heads", total);
	for (uint32_t i = 0; i < total; i++) {
		uint32_t rank = settings->head_ranks[i];

		if (rank >= places->ranks || places->hosts[rank] != i / places->heads)
			return fcl_fail(EINVAL, "head %u is not on its host", i);
		places->head_ranks[i] = rank;
		if (rank == places->rank)
			places->head = i % places->heads;
	}
	return 0;
}

int fcl_places_open(struct fcl_places *places, const struct fcl_comm_settings *settings)
{
	int result;

	*places = (struct fcl_places){ .rank = settings->rank,
				       .ranks = settings->ranks,
				       .channels = settings->channels };
	places->orders = calloc((uint64_t)places->channels * places->ranks, sizeof *places->orders);
	places->indices = calloc(places->channels, sizeof *places->indices);
	places->hosts = calloc(places->ranks, sizeof *places->hosts);
	if (places->orders == NULL || places->indices == NULL || places->hosts == NULL) {
		fcl_places_close(places);
		return fcl_fail(ENOMEM, "no memory for the places of %u ranks", settings->ranks);
	}
	fill(places, settings);
	result = check(places);
	if (result == 0)
		result = fill_heads(places, settings);
	if (result == 0)
		result = fill_chains(places, settings);
	if (result < 0)
		fcl_places_close(places);
	return result;
}

void fcl_places_close(struct fcl_places *places)
{
	free(places->orders);
	free(places->indices);
	free(places->hosts);
	free(places->chains);
	free(places->head_ranks);
	*places = (struct fcl_places){ 0 };
}

int fcl_is_local(const struct fcl_places *places, uint32_t rank)
{
	return places->hosts[rank] == places->hosts[places->rank];
}

const uint32_t *fcl_order(const struct fcl_places *places, uint32_t channel)
{
	return places->orders + channel * places->ranks;
}

uint32_t fcl_after(const struct fcl_places *places, uint32_t channel, uint32_t ahead)
{
	return fcl_order(places, channel)[(places->indices[channel] + ahead) % places->ranks];
}

static uint32_t both_ways(struct fcl_edge *edges, uint32_t count, uint32_t peer, uint32_t room)
{
	edges[count++] = (struct fcl_edge){ peer, room, 1 };
	edges[count++] = (struct fcl_edge){ peer, room, 0 };
	return count;
}

uint32_t fcl_head_rank(const struct fcl_places *places, uint32_t host, uint32_t head)
{
	return places->head_ranks[host * places->heads + head];
}

/* GPUs of each host, where all hosts have as many. */
static uint32_t gpus_of(const struct fcl_places *places)
{
	return places->ranks / places->host_count;
}

/* As nodes are doubled on one GPU each, trees take turns; over several GPUs each has its channels in a row. */
static int has_second_tree(const struct fcl_places *places, uint32_t channel)
{
	return (places->flat ? channel : channel / places->found) % 2;
}

void fcl_tree_on(const struct fcl_places *places, uint32_t channel, struct fcl_tree *tree)
{
	const uint32_t *chain = places->chains + (uint64_t)channel * places->ranks;
	uint32_t host = places->hosts[places->rank], gpus = gpus_of(places), at = 0;

	if (places->flat) {
		fcl_tree_of(has_second_tree(places, channel), places->rank, places->ranks, tree);
		return;
	}
	while (chain[host * gpus + at] != places->rank)
		at++;
	*tree = (struct fcl_tree){ .parent = FCL_TREE_NOBODY };
	if (at > 0) {
		tree->parent = chain[host * gpus + at - 1];
	} else {
		fcl_tree_of(has_second_tree(places, channel), host, places->host_count, tree);
		for (uint32_t child = 0; child < tree->count; child++)
			tree->children[child] = chain[tree->children[child] * gpus];
		if (tree->parent != FCL_TREE_NOBODY)
			tree->parent = chain[tree->parent * gpus];
	}
	if (at + 1 < gpus)
		tree->children[tree->count++] = chain[host * gpus + at + 1];
}

void fcl_nvls_tree_on(const struct fcl_places *places, uint32_t channel, struct fcl_tree *tree)
{
	fcl_tree_of(channel % 2, places->hosts[places->rank], places->host_count, tree);
	for (uint32_t child = 0; child < tree->count; child++)
		tree->children[child] = fcl_head_rank(places, tree->children[child], places->head);
	if (tree->parent != FCL_TREE_NOBODY)
		tree->parent = fcl_head_rank(places, tree->parent, places->head);
}

/* To and from all that a tree links this rank to. */
static uint32_t tree_edges(const struct fcl_tree *tree, uint32_t count, struct fcl_edge *edges)
{
	if (tree->parent != FCL_TREE_NOBODY)
		count = both_ways(edges, count, tree->parent, FCL_FLOWS);
	for (uint32_t child = 0; child < tree->count; child++)
		count = both_ways(edges, count, tree->children[child], FCL_FLOWS);
	return count;
}

static uint32_t nvls_edges(const struct fcl_places *places, uint32_t channel,
			   struct fcl_edge *edges)
{
	uint32_t host = places->hosts[places->rank], count = 0;
	struct fcl_tree tree;

	for (uint32_t head = 0; head < places->heads; head++) {
		uint32_t peer = fcl_head_rank(places, host, head);

		if (head == places->head)
			continue;
		edges[count++] = (struct fcl_edge){ peer, FCL_OFFERS, 1 };
		edges[count++] = (struct fcl_edge){ peer, FCL_RESULTS, 0 };
	}
	if (places->head == places->heads)
		return count;
	for (uint32_t i = 0; i < places->local_count; i++) {
		if (places->locals[i] == places->rank)
			continue;
		edges[count++] = (struct fcl_edge){ places->locals[i], FCL_OFFERS, 0 };
		edges[count++] = (struct fcl_edge){ places->locals[i], FCL_RESULTS, 1 };
	}
	fcl_nvls_tree_on(places, channel, &tree);
	return tree_edges(&tree, count, edges);
}

uint32_t fcl_edges(const struct fcl_places *places, uint32_t algorithm, uint32_t channel,
		   struct fcl_edge *edges)
{
	if (places->ranks == 1)
		return 0;
	if (algorithm == FCL_TREE) {
		struct fcl_tree tree;

		fcl_tree_on(places, channel, &tree);
		return tree_edges(&tree, 0, edges);
	}
	if (algorithm == FCL_NVLS_TREE)
		return nvls_edges(places, channel, edges);
	/* In the order the real captures show: a channel's sending end, then its receiving end. */
	edges[0] = (struct fcl_edge){ fcl_after(places, channel, 1), FCL_FLOWS, 1 };
	edges[1] = (struct fcl_edge){ fcl_after(places, channel, places->ranks - 1), FCL_FLOWS, 0 };
	return 2;
}
