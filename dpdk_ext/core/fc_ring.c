#include "fc_ring_ops.h"

#include <errno.h>

#include "fc_copy.h"
#include "fc_error.h"
#include "fc_frame_copy.h"

static const uint8_t ring_magic[8] = "FCRING\0";

_Static_assert(sizeof(struct fc_slot) == FC_SLOT_HEADER_BYTES, "no header shares a cache line");
_Static_assert(offsetof(struct fc_ring_header, head) % 128 == 0, "head has its own lines");
_Static_assert(offsetof(struct fc_ring_header, parsed) % 128 == 0, "parsed has its own lines");
_Static_assert(offsetof(struct fc_ring_header, readers_of) % 128 == 0, "tails have own lines");
_Static_assert(sizeof(struct fc_reader) % 128 == 0, "no reader shares a line with another");
_Static_assert(sizeof(struct fc_ring_header) <= FC_RING_SLOTS_OFFSET,
	       "header fits before the slots");

/* Upper bound of a ring's size: 2^26 slots of 64 KiB would be 4 TiB. */
#define SLOTS_MAX (1ull << 26)
#define SLOT_BYTES_MAX 65536u /* frame_bytes has 16 bits */
/* How often to wait for a writer to publish, before it is taken for dead. */
#define COMMIT_LOOKS 1000

static int check_geometry(uint64_t slots, uint32_t slot_bytes)
{
	if (slots < 2 || slots > SLOTS_MAX || (slots & (slots - 1)))
		return fc_fail(EINVAL, RING_SLOTS_REFUSED, .numbers = { slots, SLOTS_MAX });
	if (slot_bytes % FC_CACHE_LINE_BYTES || slot_bytes < 2 * FC_SLOT_HEADER_BYTES ||
	    slot_bytes > SLOT_BYTES_MAX)
		return fc_fail(EINVAL, RING_SLOT_BYTES_REFUSED,
			       .numbers = { slot_bytes, SLOT_BYTES_MAX });
	return 0;
}

static uint64_t in_pages(uint64_t bytes)
{
	return (bytes + FC_HUGE_PAGE_BYTES - 1) / FC_HUGE_PAGE_BYTES * FC_HUGE_PAGE_BYTES;
}

static uint64_t frames_offset(uint64_t slots)
{
	return in_pages(FC_RING_SLOTS_OFFSET + slots * FC_SLOT_HEADER_BYTES);
}

static uint32_t frame_room(uint32_t slot_bytes)
{
	return slot_bytes - FC_SLOT_HEADER_BYTES;
}

static uint64_t file_bytes_for(uint64_t slots, uint32_t slot_bytes)
{
	const uint64_t per_page = FC_HUGE_PAGE_BYTES / frame_room(slot_bytes);

	return frames_offset(slots) + (slots + per_page - 1) / per_page * FC_HUGE_PAGE_BYTES;
}

static void attach(struct fc_ring *ring)
{
	ring->header = (struct fc_ring_header *)ring->map.base;
	ring->slots = (struct fc_slot *)(ring->map.base + FC_RING_SLOTS_OFFSET);
	ring->frames = ring->map.base + frames_offset(ring->header->slots);
	ring->mask = ring->header->slots - 1;
	ring->frames_per_page = (uint32_t)ring->header->frames_per_page;
	ring->page_reciprocal = UINT64_MAX / ring->frames_per_page + 1;
	ring->frame_room = frame_room(ring->header->slot_bytes);
	ring->reader = ring->header->readers_of;
}

int fc_ring_create(const char *path, uint64_t slots, uint32_t slot_bytes, uint32_t live_source,
		   struct fc_ring *out)
{
	memset(out, 0, sizeof *out);
	int code = check_geometry(slots, slot_bytes);
	if (code < 0)
		return code;
	code = fc_map_create(path, file_bytes_for(slots, slot_bytes), &out->map);
	if (code < 0)
		return code;
	struct fc_ring_header *header = (struct fc_ring_header *)out->map.base;
	header->layout_version = FC_LAYOUT_VERSION;
	header->slot_bytes = slot_bytes;
	header->slots = slots;
	header->frames_per_page = FC_HUGE_PAGE_BYTES / frame_room(slot_bytes);
	header->file_bytes = out->map.bytes;
	header->huge_pages = out->map.huge_pages;
	header->live_source = live_source;
	header->source_end = UINT64_MAX;
	header->readers = 1;
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(header->magic, ring_magic, sizeof ring_magic);
	attach(out);
	return 0;
}

static int check_header(const struct fc_ring_header *header, uint64_t mapped, const char *path)
{
	if (mapped < FC_RING_SLOTS_OFFSET || memcmp(header->magic, ring_magic, sizeof ring_magic))
		return fc_fail(EINVAL, NOT_A_RING, .texts = { path });
	if (header->layout_version != FC_LAYOUT_VERSION)
		return fc_fail(EPROTO, OTHER_LAYOUT_VERSION, .texts = { path },
			       .numbers = { header->layout_version, FC_LAYOUT_VERSION });
	const int code = check_geometry(header->slots, header->slot_bytes);
	if (code < 0)
		return code;
	if (header->readers < 1 || header->readers > FC_READERS_MAX)
		return fc_fail(EINVAL, RING_READERS_DAMAGED, .texts = { path },
			       .numbers = { header->readers });
	if (header->frames_per_page != FC_HUGE_PAGE_BYTES / frame_room(header->slot_bytes) ||
	    header->file_bytes != mapped ||
	    mapped < file_bytes_for(header->slots, header->slot_bytes))
		return fc_fail(EINVAL, SIZES_CONTRADICT, .texts = { path }, .numbers = { mapped });
	return 0;
}

int fc_ring_open(const char *path, struct fc_ring *out)
{
	memset(out, 0, sizeof *out);
	int code = fc_map_open(path, 1, &out->map);
	if (code < 0)
		return code;
	code = check_header((const struct fc_ring_header *)out->map.base, out->map.bytes, path);
	if (code < 0) {
		fc_map_close(&out->map);
		return code;
	}
	attach(out);
	return 0;
}

int fc_ring_set_readers(struct fc_ring *ring, uint64_t readers)
{
	if (readers < 1 || readers > FC_READERS_MAX)
		return fc_fail(EINVAL, RING_READERS_REFUSED,
			       .numbers = { readers, FC_READERS_MAX });
	ring->header->readers = readers;
	return 0;
}

int fc_ring_read_as(struct fc_ring *ring, uint64_t reader)
{
	if (reader >= ring->header->readers)
		return fc_fail(EINVAL, RING_READER_MISSING,
			       .numbers = { reader, ring->header->readers });
	ring->reader = &ring->header->readers_of[reader];
	return 0;
}

void fc_ring_close(struct fc_ring *ring)
{
	fc_map_close(&ring->map);
	memset(ring, 0, sizeof *ring);
}

uint64_t fc_ring_head(const struct fc_ring *ring)
{
	return FC_LOAD_ACQUIRE(&ring->header->head);
}

uint64_t fc_ring_parsed(const struct fc_ring *ring)
{
	return FC_LOAD_ACQUIRE(&ring->header->parsed);
}

uint64_t fc_ring_tail(const struct fc_ring *ring)
{
	return FC_LOAD_ACQUIRE(&ring->reader->tail);
}

void fc_ring_release(struct fc_ring *ring, uint64_t position)
{
	FC_STORE_RELEASE(&ring->reader->tail, position); /* pairs with capture's look for room */
}

uint64_t fc_ring_least_tail(const struct fc_ring *ring)
{
	return fc_ring_free_from(ring);
}

uint64_t fc_ring_source_end(const struct fc_ring *ring)
{
	return FC_LOAD_ACQUIRE(&ring->header->source_end);
}

void fc_ring_end_source(struct fc_ring *ring)
{
	FC_STORE_RELEASE(&ring->header->source_end, ring->header->head);
}

struct fc_slot *fc_ring_at(const struct fc_ring *ring, uint64_t position)
{
	return fc_ring_slot(ring, position);
}

uint8_t *fc_ring_frame_at(const struct fc_ring *ring, uint64_t position)
{
	return fc_ring_frame(ring, position);
}

static struct fc_commit_stamp *stamp_of(const void *copies, size_t bytes, unsigned which)
{
	return (struct fc_commit_stamp *)((uintptr_t)copies + which * bytes);
}

unsigned fc_committed(const void *copies, size_t bytes, uint64_t position)
{
	const struct fc_commit_stamp *one = stamp_of(copies, bytes, 0),
				     *two = stamp_of(copies, bytes, 1);
	/* pairs with the release of at_position in fc_commit_write() */
	const uint64_t first = FC_LOAD_ACQUIRE(&one->at_position);
	const uint64_t second = FC_LOAD_ACQUIRE(&two->at_position);

	if ((first == position) != (second == position))
		return second == position;
	if (first == FC_BEING_WRITTEN || second == FC_BEING_WRITTEN)
		return first == FC_BEING_WRITTEN;
	return __atomic_load_n(&two->sequence, __ATOMIC_RELAXED) >
	       __atomic_load_n(&one->sequence, __ATOMIC_RELAXED);
}

void fc_commit_write(void *copies, size_t bytes, uint64_t was, const void *commit,
		     uint64_t position)
{
	const unsigned in_force = fc_committed(copies, bytes, was);
	const uint64_t sequence = stamp_of(copies, bytes, in_force)->sequence + 1;
	struct fc_commit_stamp *stamp = stamp_of(copies, bytes, 1 - in_force);

	__atomic_store_n(&stamp->at_position, FC_BEING_WRITTEN, __ATOMIC_RELAXED);
	/* A reader that sees anything of what follows, after an acquire fence, also sees that the
	 * copy is being written and a position that was published before. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(stamp + 1, (const struct fc_commit_stamp *)commit + 1, bytes - sizeof *stamp);
	__atomic_store_n(&stamp->sequence, sequence, __ATOMIC_RELAXED);
	FC_STORE_RELEASE(&stamp->at_position, position);
}

void fc_commit_read(const void *copies, size_t bytes, const uint64_t *published, void *out)
{
	struct fc_commit_stamp before, behind;
	uint64_t position, now;
	unsigned looks = 0;

	/* The writer runs meanwhile, and may write twice during a read of a few hundred bytes at
	 * most. A copy that is not published yet is not read; otherwise a later read could return
	 * an older one. */
	do {
		position = FC_LOAD_ACQUIRE(published);
		const struct fc_commit_stamp *stamp =
			stamp_of(copies, bytes, fc_committed(copies, bytes, position));
		before.at_position = FC_LOAD_ACQUIRE(&stamp->at_position);
		before.sequence = __atomic_load_n(&stamp->sequence, __ATOMIC_RELAXED);
		memcpy(out, stamp, bytes);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		behind.at_position = __atomic_load_n(&stamp->at_position, __ATOMIC_RELAXED);
		behind.sequence = __atomic_load_n(&stamp->sequence, __ATOMIC_RELAXED);
		now = FC_LOAD_ACQUIRE(published);
	} while (before.at_position != behind.at_position || before.sequence != behind.sequence ||
		 now != position || behind.at_position == FC_BEING_WRITTEN ||
		 (behind.at_position != position && ++looks < COMMIT_LOOKS));
}

void fc_ring_capture_counters(const struct fc_ring *ring, struct fc_capture_commit *out)
{
	fc_commit_read(ring->header->capture, sizeof *out, &ring->header->head, out);
}

void fc_ring_parse_counters(const struct fc_ring *ring, struct fc_parse_commit *out)
{
	fc_commit_read(ring->header->parse, sizeof *out, &ring->header->parsed, out);
}

void fc_ring_extract_counters(const struct fc_ring *ring, struct fc_extract_commit *out)
{
	fc_commit_read(ring->reader->extract, sizeof *out, &ring->reader->tail, out);
}

int fc_ring_put(struct fc_ring *ring, uint64_t pending, const uint8_t *frame, uint32_t frame_bytes,
		uint32_t wire_bytes, uint64_t timestamp_ns, uint64_t source_frame)
{
	const uint64_t position = ring->header->head + pending;

	if (frame_bytes > ring->frame_room)
		return -EMSGSIZE;
	if (position - fc_ring_free_from(ring) > ring->mask)
		return -EAGAIN;
	struct fc_slot *slot = fc_ring_slot(ring, position);
	slot->timestamp_ns = timestamp_ns;
	slot->frame_bytes = (uint16_t)frame_bytes;
	slot->wire_bytes = wire_bytes;
	slot->source_frame = source_frame;
	fc_copy_frame(slot, fc_ring_frame(ring, position), frame, frame_bytes,
		      fc_ring_wants_icrc(ring, position));
	return 0;
}

void fc_ring_publish(struct fc_ring *ring, uint64_t frames, struct fc_capture_commit *commit)
{
	struct fc_ring_header *header = ring->header;
	const uint64_t head = header->head + frames;

	fc_copy_fence();
	commit->at_position = head;
	fc_commit_write(header->capture, sizeof *commit, header->head, commit, head);
	FC_STORE_RELEASE(&header->head, head); /* pairs with fc_ring_head() */
}
