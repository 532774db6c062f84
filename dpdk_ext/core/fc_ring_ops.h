/* Operations on a ring: create, open, find a slot, publish. Inline functions, so not read by cffi;
 * functions for Python are in fc_ring_api.h. */
#ifndef FC_RING_OPS_H
#define FC_RING_OPS_H

#include "fc_common.h"
#include "fc_ring.h"
#include "fc_ring_api.h"

/* The header of a slot. */
static inline struct fc_slot *fc_ring_slot(const struct fc_ring *ring, uint64_t position)
{
	return &ring->slots[position & ring->mask];
}

/* The frame of a slot. */
static inline uint8_t *fc_ring_frame(const struct fc_ring *ring, uint64_t position)
{
	const uint64_t index = position & ring->mask;
	/* index / frames_per_page: a division takes longer than all else that a slot needs. */
	const uint64_t page = (uint64_t)((unsigned __int128)index * ring->page_reciprocal >> 64);
	return ring->frames + page * FC_HUGE_PAGE_BYTES +
	       (index - page * ring->frames_per_page) * ring->frame_room;
}

/* Whether the parser wants the ICRC of this slot: chosen by position, so that a restarted parser
 * checks the same slots. */
static inline bool fc_ring_wants_icrc(const struct fc_ring *ring, uint64_t position)
{
	const uint64_t every = __atomic_load_n(&ring->header->icrc_every, __ATOMIC_RELAXED);

	return every && (every == 1 || position % every == 0);
}

/* Position that all readers have passed. */
static inline uint64_t fc_ring_free_from(const struct fc_ring *ring)
{
	const struct fc_ring_header *header = ring->header;
	uint64_t least = UINT64_MAX;

	for (uint64_t i = 0; i < header->readers && i < FC_READERS_MAX; i++) {
		/* pairs with an extractor's release of its tail */
		const uint64_t tail = FC_LOAD_ACQUIRE(&header->readers_of[i].tail);
		least = tail < least ? tail : least;
	}
	return least;
}

/* First fields of both copies of a commit. */
struct fc_commit_stamp {
	uint64_t at_position, sequence;
};

#define FC_BEING_WRITTEN UINT64_MAX

/* Index of the valid one of two copies of `bytes` bytes, at `position`. */
unsigned fc_committed(const void *copies, size_t bytes, uint64_t position);
/* Overwrites the copy that is not valid at `was` with `commit` for `position`. The caller then
 * publishes `position` (release); readers of the position before see the other copy unchanged. */
void fc_commit_write(void *copies, size_t bytes, uint64_t was, const void *commit,
		     uint64_t position);
/* Reads the copy that is valid at *published: pairs with fc_commit_write(). */
void fc_commit_read(const void *copies, size_t bytes, const uint64_t *published, void *out);

#endif
