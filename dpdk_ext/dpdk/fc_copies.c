#include "fc_copies.h"

#include <errno.h>
#include <stdlib.h>

#include "fc_dma_ops.h"
#include "fc_error.h"
#include "fc_frame_copy.h"

enum { FREE_BATCH = 64 };

int fc_copies_create(struct fc_copies *copies, uint64_t flights, struct fc_dma *engine)
{
	memset(copies, 0, sizeof *copies);
	copies->flights = calloc(flights, sizeof *copies->flights);
	if (!copies->flights)
		return fc_fail(ENOMEM, FLIGHTS_WITHOUT_MEMORY, .numbers = { flights });
	copies->mask = flights - 1;
	copies->engine = engine;
	return 0;
}

void fc_copies_destroy(struct fc_copies *copies)
{
	free(copies->flights);
	memset(copies, 0, sizeof *copies);
}

static void gather(const struct fc_flight *flight)
{
	uint32_t left = flight->frame_bytes;
	uint8_t *to = flight->to;

	for (const struct rte_mbuf *part = flight->mbuf; part && left; part = part->next) {
		const uint32_t bytes = part->data_len < left ? part->data_len : left;

		memcpy(to, rte_pktmbuf_mtod(part, const void *), bytes);
		to += bytes;
		left -= bytes;
	}
}

/* Copies whole cache lines where the source buffer allows it: a partly written last line would
 * first be read from memory. Bytes of the slot after the frame are unused. */
static void copy_in_one(const struct fc_flight *flight)
{
	const uint32_t whole = (flight->frame_bytes + FC_CACHE_LINE_BYTES - 1) /
			       FC_CACHE_LINE_BYTES * FC_CACHE_LINE_BYTES;
	const bool has_room = rte_pktmbuf_tailroom(flight->mbuf) >= whole - flight->frame_bytes;

	fc_copy_frame(flight->slot, flight->to, rte_pktmbuf_mtod(flight->mbuf, const uint8_t *),
		      has_room ? whole : flight->frame_bytes, flight->with_icrc);
}

void fc_flight_copy(struct fc_flight *flight, enum fc_copied_by by)
{
	if (flight->mbuf->nb_segs == 1)
		copy_in_one(flight);
	else
		gather(flight);
	flight->copied_by = (uint8_t)by;
	flight->done = 1;
}

static void submit_to_cpu(struct fc_copies *copies)
{
	struct rte_mbuf *finished[FREE_BATCH];
	unsigned int count = 0;

	for (; copies->submitted != copies->next; copies->submitted++) {
		struct fc_flight *flight = fc_flight_at(copies, copies->submitted);

		if (flight->outcome == FC_PUSHED)
			fc_flight_copy(flight, FC_BY_CPU);
		flight->done = 1;
		finished[count++] = flight->mbuf;
		flight->mbuf = NULL;
		if (count == FREE_BATCH) {
			rte_pktmbuf_free_bulk(finished, count);
			count = 0;
		}
	}
	rte_pktmbuf_free_bulk(finished, count);
}

void fc_copies_submit(struct fc_copies *copies)
{
	if (copies->engine)
		fc_dma_submit(copies->engine, copies);
	else
		submit_to_cpu(copies);
}

void fc_copies_complete(struct fc_copies *copies)
{
	if (copies->engine)
		fc_dma_complete(copies->engine, copies);
}
