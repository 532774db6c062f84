/* The receive loop taken apart: fc_capture.c polls and paces, fc_admit.c gives
 * frames their slots and counts them. Not read by cffi. */
#ifndef FC_CAPTURE_STATE_H
#define FC_CAPTURE_STATE_H

#include "fc_capture.h"
#include "fc_copies.h"
#include "fc_ring_ops.h"
#include "fc_timetable.h"

struct fc_capture {
	struct fc_capture_request want;
	struct fc_ring *ring;
	struct fc_copies copies;
	struct fc_capture_commit commit;
	struct fc_capture_counters before; /* what the commit held when we began */
	uint64_t position, tail;           /* next slot to fill; tail as last seen */
	uint64_t source_frame, skip;       /* next ordinal; frames to pass over */
	struct rte_mbuf *held[FC_BURST_MAX];
	uint32_t held_first, held_count;
	uint64_t pace_start_ns, pace_stamp_ns;
	uint64_t stats_due_ns;
	uint64_t missed; /* written by another thread */
	uint32_t empty_polls;
	uint32_t stop; /* written by another thread */
};

/* Whether no slot is free; looks at tail again before it says so. */
bool fc_ring_is_full(struct fc_capture *capture);
/* Gives the next frame a slot, or none, as a flight of its own. */
void fc_admit(struct fc_capture *capture, struct rte_mbuf *mbuf, uint64_t now_ns);
/* Moves head to the first copy still under way, with the counters of just the
 * frames below it, so that a restart neither loses nor doubles a frame. */
void fc_retire(struct fc_capture *capture);

#endif
