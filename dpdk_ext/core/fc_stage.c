/* Packets into staged messages, and packets whose message is not known. */
#include "fc_roce.h"
#include "fc_staging_ops.h"

uint32_t fc_bytes_of_packet(const struct fc_message *m, uint64_t nth)
{
	if (nth >= m->packets)
		return UINT32_MAX;
	if (m->packets == 1)
		return m->length_bytes;
	const uint64_t offset = nth * m->pmtu_bytes;
	if (offset > m->length_bytes)
		return UINT32_MAX;
	const uint64_t left = m->length_bytes - offset;
	return left < m->pmtu_bytes ? (uint32_t)left : m->pmtu_bytes;
}

/* False where the two copies differ. */
static bool note_again(struct fc_extractor *x, const uint8_t *kept, const struct fc_piece *piece)
{
	const bool same = !memcmp(kept, piece->payload, piece->payload_bytes);

	if (same)
		x->counters->duplicate_bytes += piece->payload_bytes;
	else
		x->counters->conflict_bytes += piece->payload_bytes;
	return same;
}

static void note_conflict(struct fc_extractor *x, struct fc_staged *r, uint64_t from, uint64_t stop)
{
	if (!r->conflict_stop || from < r->conflict_from)
		fc_set(x, &r->conflict_from, from);
	if (stop > r->conflict_stop)
		fc_set(x, &r->conflict_stop, stop);
}

void fc_stage_packet(struct fc_extractor *x, uint64_t record, const struct fc_piece *piece)
{
	struct fc_staged *r = &x->staging->records[record];
	const uint64_t nth = piece->psn - r->message.first_psn;

	if (fc_bytes_of_packet(&r->message, nth) != piece->payload_bytes) {
		x->counters->ignored_packets++;
		return;
	}
	uint64_t *word = (uint64_t *)(x->staging->data + r->block_at) + nth / 64;
	uint8_t *home =
		x->staging->data + r->block_at + r->bitmap_bytes + nth * r->message.pmtu_bytes;
	x->counters->staged_packets++;
	if (*word >> (nth % 64) & 1) {
		const uint64_t from = nth * r->message.pmtu_bytes;
		if (!note_again(x, home, piece))
			note_conflict(x, r, from, from + piece->payload_bytes);
		return;
	}
	memcpy(home, piece->payload, piece->payload_bytes);
	x->counters->staged_bytes += piece->payload_bytes;
	fc_set(x, word, *word | 1ull << (nth % 64));
	fc_set(x, &r->packets_seen, r->packets_seen + 1);
	if (r->packets_seen == r->message.packets) {
		struct fc_staging_header *h = x->staging->header;
		fc_set(x, &h->completions, h->completions + 1);
		fc_set(x, &r->completed, h->completions);
	}
}

static bool same_shape(const struct fc_message *a, const struct fc_message *b)
{
	return a->first_psn == b->first_psn && a->packets == b->packets &&
	       a->length_bytes == b->length_bytes && a->pmtu_bytes == b->pmtu_bytes;
}

/* The start of a message came after its end, and told another length. */
static void reshape(struct fc_extractor *x, uint64_t record, const struct fc_message *now)
{
	struct fc_staged *r = &x->staging->records[record];
	const struct fc_message was = r->message;
	const uint64_t old_at = r->block_at, old_class = r->block_class;
	const uint8_t *old = x->staging->data + old_at;
	const uint64_t old_bitmap = r->bitmap_bytes;
	uint64_t seen = 0;

	if (!fc_record_block(x, r, now)) {
		x->counters->staging_full_packets++;
		return;
	}
	uint64_t *bits = (uint64_t *)(x->staging->data + r->block_at);
	for (uint64_t nth = 0; nth < was.packets; nth++) {
		const uint64_t to = was.first_psn + nth - now->first_psn;
		const uint32_t bytes = fc_bytes_of_packet(&was, nth);
		if (!(((const uint64_t *)old)[nth / 64] >> (nth % 64) & 1) ||
		    fc_bytes_of_packet(now, to) != bytes)
			continue;
		memcpy((uint8_t *)bits + r->bitmap_bytes + to * now->pmtu_bytes,
		       old + old_bitmap + nth * was.pmtu_bytes, bytes);
		bits[to / 64] |= 1ull << (to % 64);
		seen++;
	}
	fc_set(x, &r->packets_seen, seen);
	fc_set(x, &r->completed, 0);
	fc_block_give(x, old_at, old_class);
	fc_record_describe(x, r, now);
}

void fc_stage_follow(struct fc_extractor *x, uint64_t record, const struct fc_message *now)
{
	struct fc_staged *r = &x->staging->records[record];

	if (same_shape(&r->message, now))
		fc_record_describe(x, r, now);
	else
		reshape(x, record, now);
}

uint64_t fc_held_find(const struct fc_extractor *x, uint64_t from, uint64_t flow, uint64_t start,
		      uint64_t stop)
{
	const struct fc_staging_header *h = x->staging->header;

	for (uint64_t i = from; h->held_used && i < h->held_max; i++) {
		const struct fc_held *held = &x->staging->held[i];
		if (held->used && held->flow == flow && held->psn >= start && held->psn < stop)
			return i;
	}
	return UINT64_MAX;
}

void fc_held_release(struct fc_extractor *x, uint64_t index)
{
	struct fc_staging_header *h = x->staging->header;

	fc_set(x, &x->staging->held[index].used, 0);
	fc_set(x, &h->held_used, h->held_used - 1);
}

/* A packet so far behind what its flow sends by now that its message never comes. */
static uint64_t forget_old(struct fc_extractor *x, const struct fc_piece *piece)
{
	if (piece->psn < 65536)
		return UINT64_MAX;
	const uint64_t old = fc_held_find(x, 0, piece->flow, 0, piece->psn - 65536);
	if (old != UINT64_MAX) {
		fc_held_release(x, old);
		x->counters->orphan_dropped_packets++;
	}
	return old;
}

void fc_hold_packet(struct fc_extractor *x, const struct fc_piece *piece)
{
	struct fc_staging_header *h = x->staging->header;
	uint64_t index = 0;

	const uint64_t same = fc_held_find(x, 0, piece->flow, piece->psn, piece->psn + 1);
	if (same != UINT64_MAX && x->staging->held[same].payload_bytes == piece->payload_bytes) {
		note_again(x, x->staging->held_data + same * FC_HELD_BYTES, piece);
		return;
	}
	while (index < h->held_max && x->staging->held[index].used)
		index++;
	if (index == h->held_max)
		index = forget_old(x, piece);
	if (index == UINT64_MAX || piece->payload_bytes > FC_HELD_BYTES) {
		x->counters->orphan_dropped_packets++;
		return;
	}
	struct fc_held *held = &x->staging->held[index];
	memcpy(x->staging->held_data + index * FC_HELD_BYTES, piece->payload, piece->payload_bytes);
	fc_set(x, &held->flow, piece->flow);
	fc_set(x, &held->psn, piece->psn);
	fc_set(x, &held->payload_bytes, piece->payload_bytes);
	fc_set(x, &held->used, 1);
	fc_set(x, &h->held_used, h->held_used + 1);
	x->counters->held_packets++;
}
