#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "fcl_error.h"
#include "fcl_lines.h"
#include "fcl_ring.h"
#include "fcl_round.h"

enum { HUGE_BYTES = 2 << 20 };

uint64_t fcl_block_bytes(const struct fcl_geometry *geometry)
{
	return geometry->buffer_bytes[FCL_LL] + geometry->buffer_bytes[FCL_LL128] +
	       geometry->buffer_bytes[FCL_SIMPLE];
}

void fcl_slots_ring(struct fcl_slots *slots, const struct fcl_geometry *geometry, uint32_t protocol,
		    uint32_t slice_steps)
{
	uint64_t base = 0;

	for (uint32_t before = 0; before < protocol; before++)
		base += geometry->buffer_bytes[before];
	slots->base = base;
	slots->stride = geometry->buffer_bytes[protocol] / FCL_STEPS;
	slots->capacity = (uint32_t)slots->stride * slice_steps;
	slots->region = protocol;
	slots->restart = 0;
}

void fcl_slots_peer(struct fcl_slots *slots, uint32_t channel, int pooled)
{
	slots->base = (uint64_t)channel * FCL_PEER_STEPS * FCL_PEER_CHUNK_BYTES;
	slots->stride = FCL_PEER_CHUNK_BYTES;
	slots->capacity = FCL_PEER_CHUNK_BYTES;
	slots->region = 0;
	slots->restart = pooled;
}

uint8_t *fcl_block_map(uint64_t bytes)
{
	uint64_t room = bytes + HUGE_BYTES;
	uint8_t *mapped = mmap(NULL, room, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t skip;

	if (mapped == MAP_FAILED) {
		fcl_fail(errno, "no memory for a block of %" PRIu64 " bytes of slots: %s", bytes,
			 strerror(errno));
		return NULL;
	}
	skip = (HUGE_BYTES - (uintptr_t)mapped % HUGE_BYTES) % HUGE_BYTES;
	if (skip > 0)
		munmap(mapped, skip);
	munmap(mapped + skip + bytes, room - skip - bytes);
	return mapped + skip;
}

void fcl_block_unmap(uint8_t *block, uint64_t bytes)
{
	if (block != NULL)
		munmap(block, bytes);
}

void fcl_out_begin(struct fcl_out *out, const struct fcl_slots *slots, uint32_t protocol,
		   uint32_t chunk_steps, uint32_t slice_steps)
{
	out->slots = *slots;
	out->protocol = protocol;
	out->slice_steps = slice_steps;
	out->step = round_up(out->step, chunk_steps);
}

void fcl_in_begin(struct fcl_in *in, const struct fcl_slots *slots, uint32_t protocol,
		  uint32_t chunk_steps, uint32_t slice_steps, uint64_t messages)
{
	in->slots = *slots;
	in->protocol = protocol;
	in->slice_steps = slice_steps;
	in->step = in->grant_step = in->first_step = round_up(in->step, chunk_steps);
	in->to_grant = messages;
}

/* Staging is reused by absolute step also where the receiver's pool restarts: a slot of the operation
 * before may still be on its way. */
uint8_t *fcl_out_slot(struct fcl_out *out)
{
	const struct fcl_message *oldest = &out->messages[out->acknowledged % FCL_STEPS];

	if (out->acknowledged < out->filled &&
	    out->step + out->slice_steps > oldest->step + FCL_STEPS)
		return NULL;
	return out->block + out->slots.base + out->step % FCL_STEPS * out->slots.stride;
}

void fcl_out_fill(struct fcl_out *out, uint32_t wire_bytes)
{
	out->messages[out->filled % FCL_STEPS] = (struct fcl_message){
		.step = out->step,
		.bytes = wire_bytes,
		.protocol = out->protocol,
		.steps = out->slice_steps,
		.data = fcl_out_slot(out),
	};
	out->filled++;
	out->step += out->slice_steps;
}

const struct fcl_message *fcl_in_message(const struct fcl_in *in)
{
	return in->taken < in->arrived ? &in->messages[in->taken % FCL_STEPS] : NULL;
}

void fcl_in_take(struct fcl_in *in)
{
	in->taken++;
	in->step += in->slice_steps;
	if (in->shared.counts == NULL)
		return;
	atomic_store_explicit(&in->shared.counts->taken, in->taken, memory_order_release);
	fcl_shared_ring(&in->shared);
}

/* Inside a host: what is filled is there, and done with once it is taken. */
static int share(struct fcl_out *out)
{
	struct fcl_shared_counts *counts = out->shared.counts;
	uint64_t taken = atomic_load_explicit(&counts->taken, memory_order_acquire);
	int work = (int)(out->filled - out->sent);

	if (taken < out->acknowledged || taken > out->sent)
		return fcl_fail(EPROTO, "a rank of this host took what was not sent");
	work += (int)(taken - out->acknowledged);
	out->acknowledged = taken;
	if (out->sent == out->filled)
		return work;
	for (; out->sent < out->filled; out->sent++)
		counts->bytes[out->sent % FCL_STEPS] = out->messages[out->sent % FCL_STEPS].bytes;
	atomic_store_explicit(&counts->filled, out->filled, memory_order_release);
	fcl_shared_ring(&out->shared);
	return work;
}

int fcl_out_progress(struct fcl_out *out)
{
	int work = 0;

	if (out->shared.counts != NULL)
		return share(out);
	while (out->sent < out->filled) {
		struct fcl_message *message = &out->messages[out->sent % FCL_STEPS];
		int result;

		/* As NCCL's proxy, which learns from the flags that the GPU has written all lines. */
		if (!fcl_lines_proven(message->protocol, message->data, message->bytes,
				      message->step))
			break;
		result = fcl_isend(out->comm, message->data, message->bytes, &message->ticket);
		if (result == -EAGAIN)
			break;
		if (result < 0)
			return result;
		out->sent++;
		work++;
	}
	while (out->acknowledged < out->sent) {
		int result = fcl_send_test(out->comm,
					   out->messages[out->acknowledged % FCL_STEPS].ticket);

		if (result < 0)
			return result;
		if (result == 0)
			break;
		out->acknowledged++;
		work++;
	}
	return work;
}

static int grant(struct fcl_in *in)
{
	struct fcl_message *message = &in->messages[in->granted % FCL_STEPS];
	uint64_t origin = in->slots.restart ? in->first_step : 0;
	uint64_t slot = (in->grant_step - origin) % FCL_STEPS;
	uint64_t offset = in->slots.base + slot * in->slots.stride;
	/* Regions of a ring connection are its protocols' buffers, offsets count from each one's start. */
	uint64_t in_region = in->slots.restart ? offset : slot * in->slots.stride;
	int result = 0;

	if (in->shared.counts == NULL)
		result = fcl_irecv(in->comm, in->regions[in->slots.region], in_region,
				   in->slots.capacity, &message->ticket);
	if (result < 0)
		return result == -EAGAIN ? 0 : result;
	message->step = in->grant_step;
	message->data = in->block + offset;
	message->protocol = in->protocol;
	message->steps = in->slice_steps;
	in->granted++;
	in->grant_step += in->slice_steps;
	in->to_grant--;
	return 1;
}

/* Whether the oldest message that was granted and has not arrived has come now. */
static int has_come(struct fcl_in *in, struct fcl_message *message)
{
	const struct fcl_shared_counts *counts = in->shared.counts;

	if (counts == NULL)
		return fcl_recv_test(in->comm, message->ticket, &message->bytes);
	if (atomic_load_explicit(&counts->filled, memory_order_acquire) <= in->arrived)
		return 0;
	message->bytes = counts->bytes[in->arrived % FCL_STEPS];
	return 1;
}

int fcl_in_progress(struct fcl_in *in)
{
	int work = 0;

	while (in->arrived < in->granted) {
		struct fcl_message *message = &in->messages[in->arrived % FCL_STEPS];
		int result = has_come(in, message);

		if (result < 0)
			return result;
		if (result == 0)
			break;
		in->arrived++;
		work++;
	}
	while (in->to_grant > 0 && in->grant_step + in->slice_steps <= in->step + FCL_STEPS) {
		int result = grant(in);

		if (result < 0)
			return result;
		if (result == 0)
			break;
		work++;
	}
	return work;
}
