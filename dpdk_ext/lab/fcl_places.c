#include "fcl_places.h"

#include <errno.h>
#include <stdlib.h>

#include "fcl_error.h"
#include "fcl_tree.h"

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
	if (result < 0)
		fcl_places_close(places);
	return result;
}

void fcl_places_close(struct fcl_places *places)
{
	free(places->orders);
	free(places->indices);
	free(places->hosts);
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

static uint32_t tree_edges(const struct fcl_places *places, uint32_t channel,
			   struct fcl_edge *edges)
{
	struct fcl_tree tree;
	uint32_t count = 0;

	fcl_tree_of(channel, places->rank, places->ranks, &tree);
	if (tree.parent != FCL_TREE_NOBODY)
		count = both_ways(edges, count, tree.parent, FCL_FLOWS);
	for (uint32_t child = 0; child < tree.count; child++)
		count = both_ways(edges, count, tree.children[child], FCL_FLOWS);
	return count;
}

uint32_t fcl_edges(const struct fcl_places *places, uint32_t algorithm, uint32_t channel,
		   struct fcl_edge *edges)
{
	if (places->ranks == 1)
		return 0;
	if (algorithm == FCL_TREE)
		return tree_edges(places, channel, edges);
	/* In the order the real captures show: a channel's sending end, then its receiving end. */
	edges[0] = (struct fcl_edge){ fcl_after(places, channel, 1), FCL_FLOWS, 1 };
	edges[1] = (struct fcl_edge){ fcl_after(places, channel, places->ranks - 1), FCL_FLOWS, 0 };
	return 2;
}
