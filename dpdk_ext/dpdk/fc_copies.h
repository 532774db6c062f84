/* Frames on their way from packet buffer to slot, in the order they came. Two
 * ways to copy, the CPU's and the engines', behind the same two functions:
 * submit and complete. Not read by cffi. */
#ifndef FC_COPIES_H
#define FC_COPIES_H

#include <rte_mbuf.h>

#include "fc_common.h"

struct fc_dma;

enum fc_outcome {
	FC_PUSHED,
	FC_RING_FULL,
	FC_OVERSIZE,
};

enum fc_copied_by {
	FC_BY_CPU,
	FC_BY_ENGINE,
	FC_BY_CPU_INSTEAD, /* the engine had no room, or failed */
};

/* Everything that is counted of a frame is counted when its flight ends, so that
 * the counters committed with a head are those of the frames below it. */
struct fc_flight {
	struct rte_mbuf *mbuf; /* NULL once its bytes are no longer needed */
	uint8_t *to;
	uint32_t frame_bytes;
	uint8_t done, outcome, copied_by, snapped, segments;
};

struct fc_copies {
	struct fc_flight *flights;
	uint64_t first, submitted, next; /* ordinals: oldest, first to submit, next to come */
	uint64_t mask;
	struct fc_dma *engine; /* NULL: the CPU copies */
};

int fc_copies_create(struct fc_copies *copies, uint64_t flights, struct fc_dma *engine);
void fc_copies_destroy(struct fc_copies *copies);

/* Starts every flight added since the last call; packet buffers are given back
 * when their bytes have been copied. */
void fc_copies_submit(struct fc_copies *copies);
/* Marks the flights that have ended. Order among them is not given. */
void fc_copies_complete(struct fc_copies *copies);

/* The CPU's copy of one flight; engines fall back to it. */
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
