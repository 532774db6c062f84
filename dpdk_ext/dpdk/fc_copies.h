/* Frames in flight from packet buffer to slot, in order of arrival. The CPU and the copy engines
 * copy behind the same two functions, submit and complete. Not read by cffi. */
#ifndef FC_COPIES_H
#define FC_COPIES_H

#include <rte_mbuf.h>

#include "fc_common.h"
#include "fc_ring.h"

struct fc_dma;

enum fc_outcome {
	FC_PUSHED,
	FC_RING_FULL,
	FC_OVERSIZE,
};

enum fc_copied_by {
	FC_BY_CPU,
	FC_BY_ENGINE,
	FC_BY_CPU_INSTEAD, /* the engine was full or failed */
};

/* A frame in flight. Its counters are added when the flight ends, so that the counters committed
 * with a head are those of the frames below it. */
struct fc_flight {
	struct rte_mbuf *mbuf; /* NULL once its bytes are copied */
	struct fc_slot *slot;
	uint8_t *to; /* the frame of the slot */
	uint32_t frame_bytes;
	bool with_icrc; /* if the CPU copies */
	uint8_t done, outcome, copied_by, snapped, segments;
};

struct fc_copies {
	struct fc_flight *flights;
	uint64_t first, submitted, next; /* ordinals: oldest, next to submit, next to add */
	uint64_t mask;
	struct fc_dma *engine; /* NULL: the CPU copies */
};

int fc_copies_create(struct fc_copies *copies, uint64_t flights, struct fc_dma *engine);
void fc_copies_destroy(struct fc_copies *copies);

/* Starts all flights added since the last call. Packet buffers are freed when their bytes are
 * copied. */
void fc_copies_submit(struct fc_copies *copies);
/* Marks the flights that have ended, in any order. */
void fc_copies_complete(struct fc_copies *copies);

/* Copies one flight with the CPU, also where an engine could not. */
void fc_flight_copy(struct fc_flight *flight, enum fc_copied_by by);

static inline struct fc_flight *fc_flight_at(const struct fc_copies *copies, uint64_t ordinal)
{
	return &copies->flights[ordinal & copies->mask];
}

static inline uint64_t fc_copies_room(const struct fc_copies *copies)
{
	return copies->mask + 1 - (copies->next - copies->first);
}

#endif
