/* Rings as other files and Python see them. Read by the compiler and by cffi. */
#ifndef FC_RING_API_H
#define FC_RING_API_H

#include "fc_ring.h"
#include "fc_shm.h"

struct fc_ring {
	struct fc_map map;
	struct fc_ring_header *header;
	struct fc_reader *reader; /* whose tail and counters this handle is for */
	uint8_t *slots_base;
	uint64_t mask; /* slots - 1 */
	uint32_t slots_per_page, slot_bytes;
};

/* Creates the file and its header; the header's magic is written last. */
int fc_ring_create(const char *path, uint64_t slots, uint32_t slot_bytes, uint32_t live_source,
		   struct fc_ring *out);
/* Opens and checks magic, layout version and every size. */
int fc_ring_open(const char *path, struct fc_ring *out);
/* How many readers a new ring has, 1 by default; before its path is told to anyone. */
int fc_ring_set_readers(struct fc_ring *ring, uint64_t readers);
/* From now on the handle is for this reader; a new one is for reader 0. */
int fc_ring_read_as(struct fc_ring *ring, uint64_t reader);
void fc_ring_close(struct fc_ring *ring);

uint64_t fc_ring_head(const struct fc_ring *ring);
uint64_t fc_ring_parsed(const struct fc_ring *ring);
uint64_t fc_ring_tail(const struct fc_ring *ring);
/* Of the reader that is furthest behind. */
uint64_t fc_ring_least_tail(const struct fc_ring *ring);
uint64_t fc_ring_source_end(const struct fc_ring *ring);
/* Capture says that nothing more will come. */
void fc_ring_end_source(struct fc_ring *ring);
struct fc_slot *fc_ring_at(const struct fc_ring *ring, uint64_t position);

/* The counters that belong to the published positions. */
void fc_ring_capture_counters(const struct fc_ring *ring, struct fc_capture_commit *out);
void fc_ring_parse_counters(const struct fc_ring *ring, struct fc_parse_commit *out);
void fc_ring_extract_counters(const struct fc_ring *ring, struct fc_extract_commit *out);

/* Writer side of capture, for file sources and tests: copies one frame into the
 * next slot without publishing it. 0, -EAGAIN when full, -EMSGSIZE when the
 * frame is longer than a slot. `pending` frames were put and not yet published. */
int fc_ring_put(struct fc_ring *ring, uint64_t pending, const uint8_t *frame, uint32_t frame_bytes,
		uint32_t wire_bytes, uint64_t timestamp_ns, uint64_t source_frame);
/* Commits `commit` (at_position is set here) and moves head by `frames`. */
void fc_ring_publish(struct fc_ring *ring, uint64_t frames, struct fc_capture_commit *commit);

#endif
