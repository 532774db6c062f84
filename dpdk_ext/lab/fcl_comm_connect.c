#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fcl_comm_state.h"
#include "fcl_error.h"

int fcl_ends_allocate(struct fcl_ends *ends, uint32_t channels)
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

/* `bytes` of slots to send from; `local`: they are the receiver's. */
static int out_open(struct fcl_comm *comm, struct fcl_out *out, uint64_t bytes, int local,
		    uint8_t *handle)
{
	int result = 0;

	if (local) {
		fcl_shared_open_out(comm->node, handle);
	} else {
		out->block_bytes = bytes;
		out->block = fcl_block_map(bytes);
		result = out->block == NULL ? -ENOMEM
					    : fcl_send_open(comm->node->net, handle, &out->comm);
	}
	out->opened = result == 0;
	return result;
}

static int shared_in_open(struct fcl_comm *comm, struct fcl_in *in, uint64_t bytes, uint8_t *handle)
{
	int result = fcl_shared_open_in(comm->node, bytes, &in->shared, handle);

	in->block = in->shared.block;
	in->opened = result == 0;
	return result;
}

int fcl_out_open(struct fcl_comm *comm, struct fcl_ends *ends, uint32_t peer, uint32_t channel)
{
	struct fcl_out *out = &ends->out[channel];

	return out->opened ? 0
			   : out_open(comm, out, fcl_block_bytes(&comm->geometry),
				      fcl_is_local(&comm->places, peer),
				      ends->out_handles + channel * FCL_HANDLE_BYTES);
}

/* One block, one region per protocol: their rkeys differ (recvProxyConnect). */
static int wire_in_open(struct fcl_comm *comm, uint32_t writer, struct fcl_in *in, uint8_t *handle)
{
	const uint64_t *bytes = comm->geometry.buffer_bytes;
	uint64_t va, offset = 0;
	int result;

	in->block_bytes = fcl_block_bytes(&comm->geometry);
	in->block = fcl_block_map(in->block_bytes);
	if (in->block == NULL)
		return -ENOMEM;
	va = fcl_node_take_va(comm->node, in->block_bytes);
	for (uint32_t protocol = 0; protocol < 3; protocol++) {
		result = fcl_region_open(comm->node->net, in->block + offset, bytes[protocol],
					 va + offset, &in->regions[protocol]);
		if (result < 0)
			return result;
		offset += bytes[protocol];
	}
	result = fcl_recv_open(comm->node->net, writer, handle, &in->comm);
	in->opened = result == 0;
	return result;
}

int fcl_in_open(struct fcl_comm *comm, struct fcl_ends *ends, uint32_t peer, uint32_t channel)
{
	struct fcl_in *in = &ends->in[channel];
	uint8_t *handle = ends->in_handles + channel * FCL_HANDLE_BYTES;

	if (in->opened)
		return 0;
	if (fcl_is_local(&comm->places, peer))
		return shared_in_open(comm, in, fcl_block_bytes(&comm->geometry), handle);
	return wire_in_open(comm, peer, in, handle);
}

static int pooled_in_open(struct fcl_comm *comm, struct fcl_peer *peer, struct fcl_in *in,
			  uint8_t *handle)
{
	int result;

	in->block = peer->pool;
	in->regions[0] = peer->region;
	result = fcl_recv_open(comm->node->net, peer->rank, handle, &in->comm);
	in->opened = result == 0;
	return result;
}

static int peer_ends_open(struct fcl_comm *comm, struct fcl_peer *peer)
{
	uint32_t channels = comm->settings.channels;
	int local = fcl_is_local(&comm->places, peer->rank);
	uint64_t slots = (uint64_t)FCL_STEPS * FCL_PEER_CHUNK_BYTES;
	int result = fcl_ends_allocate(&peer->ends, channels);

	if (result < 0)
		return result;
	if (!local) {
		peer->pool_bytes = (uint64_t)channels * FCL_PEER_STEPS * FCL_PEER_CHUNK_BYTES;
		peer->pool = fcl_block_map(peer->pool_bytes);
		if (peer->pool == NULL)
			return -ENOMEM;
		result = fcl_region_open(comm->node->net, peer->pool, peer->pool_bytes,
					 fcl_node_take_va(comm->node, peer->pool_bytes),
					 &peer->region);
	}
	for (uint32_t channel = 0; result == 0 && channel < channels; channel++) {
		struct fcl_in *in = &peer->ends.in[channel];
		uint8_t *handle = peer->ends.in_handles + channel * FCL_HANDLE_BYTES;

		result = out_open(comm, &peer->ends.out[channel], slots, local,
				  peer->ends.out_handles + channel * FCL_HANDLE_BYTES);
		if (result == 0)
			result = local ? shared_in_open(comm, in, slots, handle)
				       : pooled_in_open(comm, peer, in, handle);
	}
	return result;
}

struct fcl_peer *fcl_peer_find(struct fcl_comm *comm, uint32_t rank)
{
	struct fcl_peer *peer = comm->peers;

	while (peer != NULL && peer->rank != rank)
		peer = peer->next;
	return peer;
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

int fcl_out_connect(struct fcl_comm *comm, struct fcl_out *out, const uint8_t *handle)
{
	int result;

	if (out->comm != NULL) {
		result = fcl_send_connect(out->comm, handle);
	} else {
		result = fcl_shared_connect_out(comm->node, &out->shared, handle);
		out->block = out->shared.block;
	}
	out->connected = result == 0;
	return result;
}

int fcl_in_connect(struct fcl_comm *comm, struct fcl_in *in, const uint8_t *handle)
{
	int result = in->comm != NULL ? fcl_recv_connect(in->comm, handle)
				      : fcl_shared_connect_in(comm->node, &in->shared, handle);

	in->connected = result == 0;
	return result;
}

static void out_close(struct fcl_out *out)
{
	if (out->comm != NULL)
		fcl_send_close(out->comm);
	fcl_shared_close(NULL, &out->shared);
	if (out->block_bytes > 0)
		fcl_block_unmap(out->block, out->block_bytes);
}

static void in_close(struct fcl_comm *comm, struct fcl_in *in)
{
	if (in->comm != NULL)
		fcl_recv_close(in->comm);
	fcl_shared_close(comm->node, &in->shared);
	if (in->block_bytes == 0)
		return; /* the pool is the peer's */
	for (uint32_t protocol = 0; protocol < 3; protocol++)
		if (in->regions[protocol] != NULL)
			fcl_region_close(in->regions[protocol]);
	fcl_block_unmap(in->block, in->block_bytes);
}

void fcl_ends_close(struct fcl_comm *comm, struct fcl_ends *ends)
{
	for (uint32_t channel = 0; channel < comm->settings.channels; channel++) {
		if (ends->out != NULL)
			out_close(&ends->out[channel]);
		if (ends->in != NULL)
			in_close(comm, &ends->in[channel]);
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
