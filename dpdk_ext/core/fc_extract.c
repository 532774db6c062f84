/* Moves the packets of slots to where their messages are placed, one committed span at a time, and
 * executes what Python requests between spans. */
#include "fc_extract.h"

#include <errno.h>
#include <stdlib.h>

#include "fc_copy.h"
#include "fc_error.h"
#include "fc_roce.h"
#include "fc_staging_ops.h"

/* Slots ahead whose headers are prefetched, and whose payloads: those up to SHORT_BYTES, and longer
 * ones. Measured with packets of 1 and 4 KiB. */
#define HEADERS_AHEAD 12
#define SHORT_AHEAD 6
#define LONG_AHEAD 2
#define SHORT_BYTES 2048

/* Undoes the changes since the last commit, latest first. The journal stays complete until all of
 * them are undone and the shard's `undone` says so; a kill before repeats it. */
static int roll_back(struct fc_extractor *x)
{
	struct fc_staging_header *h = x->staging->header;

	if (h->journal_base != fc_ring_tail(x->ring))
		h->journal_used = 0;
	bool of_shard = false;
	for (uint64_t left = h->journal_used; left; left--) {
		const struct fc_journal_entry *entry = &x->staging->journal[left - 1];
		const bool in_shard = entry->where & FC_IN_SHARD;
		const struct fc_map *map = in_shard && x->shard ? &x->shard->map : &x->staging->map;
		const uint64_t at = entry->where & ~FC_IN_SHARD;
		if (in_shard && !x->shard)
			return fc_fail(EINVAL, JOURNAL_WITHOUT_SHARD);
		if (at % 8 || at + 8 > map->bytes)
			return fc_fail(EINVAL, STAGING_JOURNAL_TORN);
		*(uint64_t *)(map->base + at) = entry->before;
		of_shard = of_shard || in_shard;
	}
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (of_shard)
		fc_shard_undo(x->shard);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	h->journal_used = 0;
	return 0;
}

/* Counters of a change without moved slots are committed before the journal is emptied: a kill
 * between the two undoes both. */
static void restore_counters(struct fc_extractor *x)
{
	struct fc_reader *reader = x->ring->reader;
	struct fc_extract_commit commit;

	fc_ring_extract_counters(x->ring, &commit);
	if (!memcmp(&commit.counters, x->counters, sizeof commit.counters))
		return;
	commit.counters = *x->counters;
	fc_commit_write(reader->extract, sizeof commit, reader->tail, &commit, reader->tail);
}

int fc_extractor_open(struct fc_ring *ring, const struct fc_flows *flows,
		      struct fc_staging *staging, struct fc_shard *shard, int block,
		      struct fc_extractor **out)
{
	*out = NULL;
	if (staging->mask != flows->mask)
		return fc_fail(EINVAL, STAGING_OF_ANOTHER_TABLE,
			       .numbers = { staging->mask + 1, flows->mask + 1 });
	struct fc_extractor *x = calloc(1, sizeof *x);
	if (!x)
		return fc_fail(ENOMEM, EXTRACTOR_WITHOUT_MEMORY);
	*x = (struct fc_extractor){
		.ring = ring,
		.flows = flows,
		.staging = staging,
		.shard = shard,
		.counters = &staging->header->counters,
		.block = block != 0,
		.ring_number = FC_RING_UNKNOWN,
	};
	x->orphan_freed = calloc(staging->header->orphans_max + 1, sizeof *x->orphan_freed);
	int code = x->orphan_freed ? roll_back(x) : fc_fail(ENOMEM, EXTRACTOR_WITHOUT_MEMORY);
	if (code == 0)
		code = fc_blocks_open(x);
	if (code == 0)
		code = fc_orphans_open(x);
	if (code < 0) {
		fc_extractor_close(x);
		return code;
	}
	restore_counters(x);
	*out = x;
	return 0;
}

void fc_extractor_close(struct fc_extractor *x)
{
	if (!x)
		return;
	free(x->orphan_freed);
	fc_blocks_close(x);
	fc_orphans_close(x);
	free(x);
}

void fc_extractor_number(struct fc_extractor *x, uint64_t ring)
{
	x->ring_number = ring;
}

void fc_extractor_use_shard(struct fc_extractor *x, struct fc_shard *shard)
{
	x->shard = shard;
	x->wanted_step = 0;
	x->asked_step = 0;
}

uint64_t fc_extract_wanted_step(const struct fc_extractor *x)
{
	return x->wanted_step;
}

int fc_extract_stalled(const struct fc_extractor *x)
{
	return x->stalled;
}

void fc_extract_unblock(struct fc_extractor *x)
{
	x->block = false;
}

void fc_change_begin(struct fc_extractor *x)
{
	struct fc_staging_header *h = x->staging->header;
	uint64_t *counters = (uint64_t *)x->counters;

	x->change++;
	x->freed = false;
	fc_blocks_settle(x);
	h->journal_used = 0;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	h->journal_base = x->ring->reader->tail;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	for (size_t i = 0; i < sizeof *x->counters / 8; i++)
		fc_set(x, &counters[i], counters[i]);
}

/* Commits in this order: counters, tail, empty journal. Without a new tail, emptying the journal
 * commits. */
static void commit(struct fc_extractor *x, uint64_t tail)
{
	struct fc_reader *reader = x->ring->reader;
	const struct fc_extract_commit commit = { .counters = *x->counters };

	fc_copy_fence();
	if (x->shard)
		fc_shard_settle(x->shard); /* pairs with fc_shard_settled() */
	fc_commit_write(reader->extract, sizeof commit, reader->tail, &commit, tail);
	if (tail != reader->tail)
		FC_STORE_RELEASE(&reader->tail, tail); /* pairs with fc_ring_free_from() */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	FC_STORE_RELEASE(&x->staging->header->journal_used, 0);
}

void fc_change_end(struct fc_extractor *x)
{
	commit(x, x->ring->reader->tail);
}

/* Whether the extractor needs the packet's bytes. */
static bool is_of_write(const struct fc_mark *mark)
{
	switch (mark->verdict) {
	case FC_WRITE:
		return mark->message;
	case FC_REFUSED:
		/* The receiver refused it, but it was sent; and the NAK may be forged. */
		return mark->message && fc_is_write(mark->opcode);
	case FC_ORPHAN:
		return true;
	case FC_DOUBTFUL:
		/* Perhaps the real packet, and the one that was taken for it is forged. */
		return fc_is_write(mark->opcode) && !fc_has_reth(mark->opcode);
	default:
		return false;
	}
}

static enum fc_slot_result without_message(struct fc_extractor *x, const struct fc_mark *mark,
					   const struct fc_packet_payload *piece)
{
	const bool doubted = mark->verdict == FC_DOUBTFUL;
	enum fc_slot_result end = FC_SLOT_DONE;

	if (!doubted || !mark->alternative)
		end = fc_orphan_keep(x, piece, doubted);
	if (end == FC_SLOT_DONE && mark->alternative)
		fc_compare_alternative(x, mark->alternative, NULL, 0, piece);
	return end;
}

static enum fc_slot_result extract_slot(struct fc_extractor *x, uint64_t position)
{
	const struct fc_mark mark = fc_ring_slot(x->ring, position)->mark;
	const struct fc_packet_payload piece = {
		.flow = mark.flow,
		.psn = mark.psn,
		.payload = fc_ring_frame(x->ring, position) + mark.payload_at,
		.payload_bytes = mark.payload_bytes,
	};
	enum fc_slot_result end = FC_SLOT_DONE;

	if (is_of_write(&mark)) {
		/* The parser is another process: its values are checked. */
		if (mark.flow >= FC_FLOWS_MAX || mark.payload_bytes > FC_ORPHAN_BYTES ||
		    (uint32_t)mark.payload_at + mark.payload_bytes > x->ring->frame_room)
			x->counters->ignored_packets++;
		else if (mark.message)
			end = fc_deliver_packet(x, &mark, &piece);
		else
			end = without_message(x, &mark, &piece);
	}
	if (end == FC_SLOT_DONE)
		x->counters->seen_frames++;
	return end;
}

/* Prefetches the header and the beginning of a frame far ahead, and the payload of a nearer one,
 * whose header is cached by now: a long one while this slot's payload is copied (one block of
 * prefetches before the copy took a tenth longer). Packets below SHORT_BYTES are too short for the
 * CPU's own prefetcher, and their lines go to the L2 cache: buffers of the L1 cache are what stores
 * past the caches need. Each frame is on a page of its own, and a prefetch does not wait for the
 * page's address: the frame is read once before, which does (measured with 4 KiB pages: placing
 * took 1.4 times as long without). */
static void prefetch(struct fc_extractor *x, uint64_t position)
{
	const struct fc_mark *next = &fc_ring_slot(x->ring, position + LONG_AHEAD)->mark;
	const struct fc_mark *far = &fc_ring_slot(x->ring, position + SHORT_AHEAD)->mark;
	const uint8_t *far_frame = fc_ring_frame(x->ring, position + SHORT_AHEAD);

	__builtin_prefetch(fc_ring_slot(x->ring, position + HEADERS_AHEAD));
	__builtin_prefetch(fc_ring_frame(x->ring, position + HEADERS_AHEAD));
	(void)*(const volatile uint8_t *)far_frame;
	x->ahead = NULL;
	if (next->payload_bytes > SHORT_BYTES)
		x->ahead = fc_ring_frame(x->ring, position + LONG_AHEAD) + next->payload_at;
	if (far->payload_bytes <= SHORT_BYTES)
		for (uint32_t at = 0; at < far->payload_bytes; at += FC_CACHE_LINE_BYTES)
			__builtin_prefetch(far_frame + far->payload_at + at, 0, 2);
}

static uint64_t extract_some(struct fc_extractor *x, uint64_t first, uint64_t count)
{
	uint64_t done = 0;

	fc_change_begin(x);
	while (done < count && fc_journal_left(x) > 3 * FC_JOURNAL_PACKET) {
		prefetch(x, first + done);
		x->first_slot = !done;
		const enum fc_slot_result end = extract_slot(x, first + done);
		x->stalled = end == FC_SLOT_WAITS;
		x->lacks_step = end == FC_SLOT_NEEDS_STEP;
		if (end != FC_SLOT_DONE)
			break;
		done++;
	}
	commit(x, first + done);
	return done;
}

int64_t fc_extract_span(struct fc_extractor *x, uint64_t limit)
{
	/* pairs with the parser's release of parsed */
	const uint64_t parsed = fc_ring_parsed(x->ring);
	const uint64_t start = x->ring->reader->tail;
	const uint64_t stop = parsed - start < limit ? parsed : start + limit;
	uint64_t at = start;

	x->stalled = false;
	x->lacks_step = false;
	while (at < stop && !x->stalled && !x->lacks_step) {
		const uint64_t count = stop - at < FC_SPAN_SLOTS ? stop - at : FC_SPAN_SLOTS;
		at += extract_some(x, at, count);
	}
	return (int64_t)(at - start);
}
