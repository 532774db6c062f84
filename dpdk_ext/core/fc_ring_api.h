/* Rings, for other files and Python. Read by the compiler and by cffi. */
#ifndef FC_RING_API_H
#define FC_RING_API_H

#include "fc_ring.h"
#include "fc_shm.h"

struct fc_ring {
	struct fc_map map;
	struct fc_ring_header *header;
	struct fc_reader *reader; /* reader whose tail and counters this handle uses */
	struct fc_slot *slots;    /* headers */
	uint8_t *frames;
	uint64_t mask;            /* slots - 1 */
	uint64_t page_reciprocal; /* 2^64 / frames_per_page, rounded up */
	uint32_t frames_per_page;
	uint32_t frame_room; /* bytes from one frame to the next: no frame has more */
};

/* Creates the file and its header; the header's magic is written last. */
int fc_ring_create(const char *path, uint64_t slots, uint32_t slot_bytes, uint32_t live_source,
		   struct fc_ring *out);
/* Opens the file and checks magic, layout version and all sizes. */
int fc_ring_open(const char *path, struct fc_ring *out);
/* Sets the number of readers of a new ring (default 1), before its path is passed on. */
int fc_ring_set_readers(struct fc_ring *ring, uint64_t readers);
/* Selects the reader of this handle; a new handle uses reader 0. */
int fc_ring_read_as(struct fc_ring *ring, uint64_t reader);
void fc_ring_close(struct fc_ring *ring);

uint64_t fc_ring_head(const struct fc_ring *ring);
uint64_t fc_ring_parsed(const struct fc_ring *ring);
uint64_t fc_ring_tail(const struct fc_ring *ring);
/* Frees the slots below `position`, for a reader that has no extractor. */
void fc_ring_release(struct fc_ring *ring, uint64_t position);
/* Tail of the reader that is furthest behind. */
uint64_t fc_ring_least_tail(const struct fc_ring *ring);
uint64_t fc_ring_source_end(const struct fc_ring *ring);
/* Capture: no more frames will come. */
void fc_ring_end_source(struct fc_ring *ring);
struct fc_slot *fc_ring_at(const struct fc_ring *ring, uint64_t position);
uint8_t *fc_ring_frame_at(const struct fc_ring *ring, uint64_t position);

/* The counters that belong to the published positions. */
void fc_ring_capture_counters(const struct fc_ring *ring, struct fc_capture_commit *out);
void fc_ring_parse_counters(const struct fc_ring *ring, struct fc_parse_commit *out);
void fc_ring_extract_counters(const struct fc_ring *ring, struct fc_extract_commit *out);

/* Capture of file sources and tests: copies one frame to the next slot without publishing it.
 * Returns 0, -EAGAIN if the ring is full, -EMSGSIZE if the frame is longer than a slot. `pending`:
 * frames that were put and not published yet. */
int fc_ring_put(struct fc_ring *ring, uint64_t pending, const uint8_t *frame, uint32_t frame_bytes,
		uint32_t wire_bytes, uint64_t timestamp_ns, uint64_t source_frame);
/* Commits `commit` (at_position is set here) and moves head by `frames`. */
void fc_ring_publish(struct fc_ring *ring, uint64_t frames, struct fc_capture_commit *commit);

#endif
