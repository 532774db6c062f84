/* State of the receive loop: fc_capture.c polls and paces, fc_admit.c assigns slots and counts.
 * Not read by cffi. */
#ifndef FC_CAPTURE_STATE_H
#define FC_CAPTURE_STATE_H

#include "fc_capture.h"
#include "fc_copies.h"
#include "fc_ring_ops.h"
#include "fc_timestamps.h"

struct fc_capture {
	struct fc_capture_request want;
	struct fc_ring *ring;
	struct fc_copies copies;
	struct fc_capture_commit commit;
	struct fc_capture_counters before; /* counters in the last commit before this run */
	uint64_t position, tail;           /* next slot to fill; last known tail */
	uint64_t source_frame, skip;       /* ordinal of the next frame; frames to skip */
	struct rte_mbuf *polled[FC_BURST_MAX];
	uint32_t polled_first, polled_count;
	uint64_t pace_start_ns, pace_stamp_ns;
	uint64_t stats_due_ns;
	uint64_t missed; /* written by another thread */
	uint32_t empty_polls;
	uint32_t stop; /* written by another thread */
};

/* Whether no slot is free; reads the tail again before it returns true. */
bool fc_ring_is_full(struct fc_capture *capture);
/* Adds the next frame as a flight, with a slot if one is free. */
void fc_admit(struct fc_capture *capture, struct rte_mbuf *mbuf, uint64_t now_ns);
/* Moves head to the oldest copy in flight, with the counters of exactly the frames below it, so
 * that a restart neither loses nor repeats a frame. */
void fc_retire(struct fc_capture *capture);

#endif
