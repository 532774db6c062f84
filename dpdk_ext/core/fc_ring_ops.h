/* What one does with a ring: create, open, find a slot, publish. Inlines for C,
 * so cffi does not read this file; what Python calls is in fc_ring_api.h. */
#ifndef FC_RING_OPS_H
#define FC_RING_OPS_H

#include "fc_common.h"
#include "fc_ring.h"
#include "fc_ring_api.h"

static inline struct fc_slot *fc_ring_slot(const struct fc_ring *ring, uint64_t position)
{
	const uint64_t index = position & ring->mask;
	const uint64_t page = index / ring->slots_per_page;
	return (struct fc_slot *)(ring->slots_base + page * FC_HUGE_PAGE_BYTES +
				  (index - page * ring->slots_per_page) * ring->slot_bytes);
}

/* What lies before it every reader has passed. */
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

/* The commit copy that belongs to `position`; after a kill at most one does not. */
#define FC_COMMITTED(copies, position)                                                             \
	((copies)[1].at_position == (position) && (copies)[0].at_position != (position)            \
		 ? &(copies)[1]                                                                    \
		 : &(copies)[0])

#endif
