/* The connections of a communicator's collectives: one for each channel, peer and direction, whatever the
 * algorithms that use it (src/transport.cc). An algorithm's are opened together, and connected together. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fcl_comm_state.h"
#include "fcl_error.h"

uint32_t fcl_comm_handles_bytes(const struct fcl_comm *comm)
{
	return comm->settings.channels * FCL_HANDLE_BYTES;
}

uint32_t fcl_comm_link_bytes(const struct fcl_comm *comm)
{
	return 2 * FCL_ROOMS * fcl_comm_handles_bytes(comm);
}

static struct fcl_link *find(const struct fcl_comm *comm, uint32_t rank)
{
	struct fcl_link *link = comm->links;

	while (link != NULL && link->rank != rank)
		link = link->next;
	return link;
}

/* The link to a rank, made if need be; NULL with the sentence set. */
static struct fcl_link *link_to(struct fcl_comm *comm, uint32_t rank)
{
	struct fcl_link *link = find(comm, rank);
	int result = 0;

	if (link != NULL)
		return link;
	link = calloc(1, sizeof *link);
	if (link == NULL) {
		fcl_fail(ENOMEM, "no memory for a link");
		return NULL;
	}
	link->rank = rank;
	link->next = comm->links;
	comm->links = link;
	for (uint32_t room = 0; result == 0 && room < FCL_ROOMS; room++)
		result = fcl_ends_allocate(&link->rooms[room], comm->settings.channels);
	return result == 0 ? link : NULL;
}

void fcl_links_close(struct fcl_comm *comm)
{
	while (comm->links != NULL) {
		struct fcl_link *link = comm->links;

		comm->links = link->next;
		for (uint32_t room = 0; room < FCL_ROOMS; room++)
			fcl_ends_close(comm, &link->rooms[room]);
		free(link);
	}
}

struct fcl_out *fcl_link_out(struct fcl_comm *comm, uint32_t rank, uint32_t room, uint32_t channel)
{
	struct fcl_link *link = find(comm, rank);

	if (link != NULL && link->rooms[room].out[channel].connected)
		return &link->rooms[room].out[channel];
	fcl_fail(ENOTCONN, "there is no connection to rank %u yet", rank);
	return NULL;
}

struct fcl_in *fcl_link_in(struct fcl_comm *comm, uint32_t rank, uint32_t room, uint32_t channel)
{
	struct fcl_link *link = find(comm, rank);

	if (link != NULL && link->rooms[room].in[channel].connected)
		return &link->rooms[room].in[channel];
	fcl_fail(ENOTCONN, "there is no connection from rank %u yet", rank);
	return NULL;
}

struct linking {
	struct fcl_comm *comm;
	uint32_t algorithm, peer;
	uint32_t *ranks;
	uint8_t *handles;
	const uint8_t *theirs;
};

/* Opens the edges that lead to or from `peer`. */
static int open_edges(struct fcl_comm *comm, uint32_t algorithm, uint32_t channel, uint32_t peer,
		      int out)
{
	struct fcl_edge edges[FCL_MOST_EDGES];
	uint32_t count = fcl_edges(&comm->places, algorithm, channel, edges);
	int result = 0;

	for (uint32_t i = 0; result == 0 && i < count; i++) {
		struct fcl_link *link;

		if (edges[i].peer != peer || edges[i].out != out)
			continue;
		link = link_to(comm, peer);
		if (link == NULL)
			return -ENOMEM;
		result = (out ? fcl_out_open : fcl_in_open)(comm, &link->rooms[edges[i].room], peer,
							    channel);
	}
	return result;
}

/* A ring's channel by channel, as the real captures show; all others as ncclTransportP2pSetup goes through
 * the ranks (src/transport.cc): from the i-th before this one, to the i-th behind it. */
static int open_all(struct fcl_comm *comm, uint32_t algorithm)
{
	const struct fcl_places *at = &comm->places;
	uint32_t ranks = at->ranks, channels = at->channels;
	int result = 0;

	if (algorithm == FCL_RING) {
		for (uint32_t channel = 0; result == 0 && channel < channels; channel++) {
			result = open_edges(comm, algorithm, channel, fcl_after(at, channel, 1), 1);
			if (result == 0)
				result = open_edges(comm, algorithm, channel,
						    fcl_after(at, channel, ranks - 1), 0);
		}
		return result;
	}
	for (uint32_t i = 1; i < ranks; i++) {
		for (uint32_t channel = 0; result == 0 && channel < channels; channel++)
			result = open_edges(comm, algorithm, channel,
					    (at->rank + ranks - i) % ranks, 0);
		for (uint32_t channel = 0; result == 0 && channel < channels; channel++)
			result = open_edges(comm, algorithm, channel, (at->rank + i) % ranks, 1);
	}
	return result;
}

static uint32_t neighbours(const struct fcl_comm *comm, uint32_t algorithm, uint32_t *ranks)
{
	uint32_t found = 0;

	for (uint32_t channel = 0; channel < comm->settings.channels; channel++) {
		struct fcl_edge edges[FCL_MOST_EDGES];
		uint32_t count = fcl_edges(&comm->places, algorithm, channel, edges);

		for (uint32_t i = 0; i < count; i++) {
			uint32_t at = 0;

			while (at < found && ranks[at] != edges[i].peer)
				at++;
			ranks[at] = edges[i].peer;
			found += at == found;
		}
	}
	return found;
}

static int open_on_node(void *argument)
{
	struct linking *linking = argument;
	int result = open_all(linking->comm, linking->algorithm);

	return result < 0 ? result
			  : (int)neighbours(linking->comm, linking->algorithm, linking->ranks);
}

int fcl_comm_open_links(struct fcl_comm *comm, uint32_t algorithm, uint32_t *ranks)
{
	struct linking linking = { .comm = comm, .algorithm = algorithm, .ranks = ranks };

	return fcl_node_call(comm->node, open_on_node, &linking);
}

/* By room: the handles of what is sent, then of what is received; zeros where an end is not open. */
static int handles_on_node(void *argument)
{
	struct linking *linking = argument;
	struct fcl_link *link = find(linking->comm, linking->peer);
	uint32_t half = fcl_comm_handles_bytes(linking->comm);

	if (link == NULL)
		return fcl_fail(EINVAL, "rank %u has no link", linking->peer);
	for (uint32_t room = 0; room < FCL_ROOMS; room++) {
		uint8_t *at = linking->handles + 2 * room * half;

		memcpy(at, link->rooms[room].out_handles, half);
		memcpy(at + half, link->rooms[room].in_handles, half);
	}
	return 0;
}

int fcl_comm_link_handles(struct fcl_comm *comm, uint32_t peer, uint8_t *handles)
{
	struct linking linking = { .comm = comm, .peer = peer, .handles = handles };

	return fcl_node_call(comm->node, handles_on_node, &linking);
}

static int connect_edge(struct fcl_comm *comm, struct fcl_link *link, const struct fcl_edge *edge,
			uint32_t channel, const uint8_t *theirs)
{
	struct fcl_ends *ends = &link->rooms[edge->room];
	const uint8_t *senders = theirs + 2 * edge->room * fcl_comm_handles_bytes(comm);
	const uint8_t *receivers = senders + fcl_comm_handles_bytes(comm);

	if (edge->out && !ends->out[channel].connected)
		return fcl_out_connect(comm, &ends->out[channel],
				       receivers + channel * FCL_HANDLE_BYTES);
	if (!edge->out && !ends->in[channel].connected)
		return fcl_in_connect(comm, &ends->in[channel],
				      senders + channel * FCL_HANDLE_BYTES);
	return 0;
}

static int connect_on_node(void *argument)
{
	struct linking *linking = argument;
	struct fcl_comm *comm = linking->comm;
	struct fcl_link *link = find(comm, linking->peer);

	if (link == NULL)
		return fcl_fail(EINVAL, "rank %u has no link", linking->peer);
	for (uint32_t channel = 0; channel < comm->settings.channels; channel++) {
		struct fcl_edge edges[FCL_MOST_EDGES];
		uint32_t count = fcl_edges(&comm->places, linking->algorithm, channel, edges);

		for (uint32_t i = 0; i < count; i++) {
			int result = edges[i].peer != linking->peer
					     ? 0
					     : connect_edge(comm, link, &edges[i], channel,
							    linking->theirs);

			if (result < 0)
				return result;
		}
	}
	return 0;
}

int fcl_comm_link_connect(struct fcl_comm *comm, uint32_t algorithm, uint32_t peer,
			  const uint8_t *handles)
{
	struct linking linking = {
		.comm = comm, .algorithm = algorithm, .peer = peer, .theirs = handles
	};

	return fcl_node_call(comm->node, connect_on_node, &linking);
}
