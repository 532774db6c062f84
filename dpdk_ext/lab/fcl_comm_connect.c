#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fcl_comm_state.h"
#include "fcl_error.h"

static int ends_allocate(struct fcl_ends *ends, uint32_t channels)
{
	ends->in = calloc(channels, sizeof *ends->in);
	ends->out = calloc(channels, sizeof *ends->out);
	ends->in_handles = calloc(channels, FCL_HANDLE_BYTES);
	ends->out_handles = calloc(channels, FCL_HANDLE_BYTES);
	if (ends->in == NULL || ends->out == NULL || ends->in_handles == NULL ||
	    ends->out_handles == NULL)
		return fcl_fail(ENOMEM, "no memory for the ends of %u channels", channels);
	return 0;
}

static int out_open(struct fcl_comm *comm, struct fcl_out *out, uint64_t bytes, uint8_t *handle)
{
	out->block_bytes = bytes;
	out->block = fcl_block_map(bytes);
	if (out->block == NULL)
		return -ENOMEM;
	return fcl_send_open(comm->node->net, handle, &out->comm);
}

/* One block, one region per protocol: their rkeys differ (recvProxyConnect). */
static int ring_in_open(struct fcl_comm *comm, uint32_t writer, struct fcl_in *in, uint8_t *handle)
{
	const uint64_t *bytes = comm->geometry.buffer_bytes;
	uint64_t va, offset = 0;

	in->block_bytes = fcl_block_bytes(&comm->geometry);
	in->block = fcl_block_map(in->block_bytes);
	if (in->block == NULL)
		return -ENOMEM;
	va = fcl_node_take_va(comm->node, in->block_bytes);
	for (uint32_t protocol = 0; protocol < 3; protocol++) {
		int result = fcl_region_open(comm->node->net, in->block + offset, bytes[protocol],
					     va + offset, &in->regions[protocol]);

		if (result < 0)
			return result;
		offset += bytes[protocol];
	}
	return fcl_recv_open(comm->node->net, writer, handle, &in->comm);
}

static int ring_like_open(struct fcl_comm *comm, uint32_t writer, struct fcl_ends *ends)
{
	int result = ends_allocate(ends, comm->settings.channels);

	/* In the order the real captures show: a channel's sending end, then its receiving end. */
	for (uint32_t channel = 0; result == 0 && channel < comm->settings.channels; channel++) {
		result = out_open(comm, &ends->out[channel], fcl_block_bytes(&comm->geometry),
				  ends->out_handles + channel * FCL_HANDLE_BYTES);
		if (result == 0)
			result = ring_in_open(comm, writer, &ends->in[channel],
					      ends->in_handles + channel * FCL_HANDLE_BYTES);
	}
	return result;
}

int fcl_ring_ends_open(struct fcl_comm *comm)
{
	uint32_t previous = (comm->settings.rank + comm->settings.ranks - 1) % comm->settings.ranks;

	return ring_like_open(comm, previous, &comm->ring);
}

static int peer_ends_open(struct fcl_comm *comm, struct fcl_peer *peer)
{
	uint32_t channels = comm->settings.channels;
	int result = ends_allocate(&peer->ends, channels);

	if (result < 0)
		return result;
	peer->pool_bytes = (uint64_t)channels * FCL_PEER_STEPS * FCL_PEER_CHUNK_BYTES;
	peer->pool = fcl_block_map(peer->pool_bytes);
	if (peer->pool == NULL)
		return -ENOMEM;
	result = fcl_region_open(comm->node->net, peer->pool, peer->pool_bytes,
				 fcl_node_take_va(comm->node, peer->pool_bytes), &peer->region);
	for (uint32_t channel = 0; result == 0 && channel < channels; channel++) {
		struct fcl_in *in = &peer->ends.in[channel];

		in->block = peer->pool;
		in->regions[0] = peer->region;
		result = out_open(comm, &peer->ends.out[channel],
				  (uint64_t)FCL_STEPS * FCL_PEER_CHUNK_BYTES,
				  peer->ends.out_handles + channel * FCL_HANDLE_BYTES);
		if (result == 0)
			result = fcl_recv_open(comm->node->net, peer->rank,
					       peer->ends.in_handles + channel * FCL_HANDLE_BYTES,
					       &in->comm);
	}
	return result;
}

static struct fcl_peer *find(struct fcl_peer *peer, uint32_t rank)
{
	while (peer != NULL && peer->rank != rank)
		peer = peer->next;
	return peer;
}

struct fcl_peer *fcl_peer_find(struct fcl_comm *comm, uint32_t rank)
{
	return find(comm->peers, rank);
}

struct fcl_peer *fcl_branch_find(struct fcl_comm *comm, uint32_t rank)
{
	return find(comm->branches, rank);
}

int fcl_branch_open(struct fcl_comm *comm, uint32_t rank, struct fcl_peer **opened)
{
	struct fcl_peer *branch = calloc(1, sizeof *branch);
	int result;

	if (branch == NULL)
		return fcl_fail(ENOMEM, "no memory for a branch");
	branch->rank = rank;
	result = ring_like_open(comm, rank, &branch->ends);
	if (result < 0) {
		fcl_peer_close(comm, branch);
		return result;
	}
	branch->next = comm->branches;
	comm->branches = branch;
	*opened = branch;
	return 0;
}

int fcl_peer_open(struct fcl_comm *comm, uint32_t rank, struct fcl_peer **opened)
{
	struct fcl_peer *peer = calloc(1, sizeof *peer);
	int result;

	if (peer == NULL)
		return fcl_fail(ENOMEM, "no memory for a peer");
	peer->rank = rank;
	result = peer_ends_open(comm, peer);
	if (result == 0)
		result = fcl_lane_open(comm, &peer->sends);
	if (result == 0)
		result = fcl_lane_open(comm, &peer->receives);
	if (result < 0) {
		fcl_peer_close(comm, peer);
		return result;
	}
	peer->next = comm->peers;
	comm->peers = peer;
	*opened = peer;
	return 0;
}

int fcl_ends_connect(struct fcl_comm *comm, struct fcl_ends *ends, const uint8_t *senders,
		     const uint8_t *receivers)
{
	for (uint32_t channel = 0; channel < comm->settings.channels; channel++) {
		uint32_t at = channel * FCL_HANDLE_BYTES;
		int result = fcl_send_connect(ends->out[channel].comm, receivers + at);

		if (result == 0)
			result = fcl_recv_connect(ends->in[channel].comm, senders + at);
		if (result < 0)
			return result;
	}
	ends->connected = 1;
	return 0;
}

void fcl_ends_close(struct fcl_comm *comm, struct fcl_ends *ends)
{
	for (uint32_t channel = 0; channel < comm->settings.channels; channel++) {
		if (ends->out != NULL) {
			if (ends->out[channel].comm != NULL)
				fcl_send_close(ends->out[channel].comm);
			fcl_block_unmap(ends->out[channel].block, ends->out[channel].block_bytes);
		}
		if (ends->in == NULL)
			continue;
		if (ends->in[channel].comm != NULL)
			fcl_recv_close(ends->in[channel].comm);
		if (ends->in[channel].block_bytes == 0)
			continue; /* the pool is the peer's */
		for (uint32_t protocol = 0; protocol < 3; protocol++)
			if (ends->in[channel].regions[protocol] != NULL)
				fcl_region_close(ends->in[channel].regions[protocol]);
		fcl_block_unmap(ends->in[channel].block, ends->in[channel].block_bytes);
	}
	free(ends->in);
	free(ends->out);
	free(ends->in_handles);
	free(ends->out_handles);
	*ends = (struct fcl_ends){ 0 };
}

void fcl_peer_close(struct fcl_comm *comm, struct fcl_peer *peer)
{
	fcl_lane_close(comm, &peer->sends);
	fcl_lane_close(comm, &peer->receives);
	fcl_ends_close(comm, &peer->ends);
	if (peer->region != NULL)
		fcl_region_close(peer->region);
	fcl_block_unmap(peer->pool, peer->pool_bytes);
	free(peer);
}
