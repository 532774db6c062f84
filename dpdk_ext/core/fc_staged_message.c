/* Writes packets to staged messages. */
#include "fc_copy.h"
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

bool fc_compare_copy(struct fc_extractor *x, const uint8_t *kept,
		     const struct fc_packet_payload *piece)
{
	const bool same = !memcmp(kept, piece->payload, piece->payload_bytes);

	if (same)
		x->counters->duplicate_bytes += piece->payload_bytes;
	else
		x->counters->conflict_bytes += piece->payload_bytes;
	return same;
}

void fc_stage_conflict(struct fc_extractor *x, uint64_t record,
		       const struct fc_packet_payload *piece)
{
	struct fc_staged *r = &x->staging->records[record];
	const uint64_t from = (piece->psn - r->message.first_psn) * r->message.pmtu_bytes;
	const uint64_t stop = from + piece->payload_bytes;

	if (!r->conflict_stop || from < r->conflict_from)
		fc_set(x, &r->conflict_from, from);
	if (stop > r->conflict_stop)
		fc_set(x, &r->conflict_stop, stop);
}

void fc_stage_packet(struct fc_extractor *x, uint64_t record, const struct fc_packet_payload *piece)
{
	struct fc_staged *r = &x->staging->records[record];
	const uint64_t nth = piece->psn - r->message.first_psn;

	if (fc_bytes_of_packet(&r->message, nth) != piece->payload_bytes) {
		x->counters->ignored_packets++;
		return;
	}
	uint64_t *word = (uint64_t *)(x->staging->data + r->block_at) + nth / 64;
	uint8_t *placement =
		x->staging->data + r->block_at + r->bitmap_bytes + nth * r->message.pmtu_bytes;
	x->counters->staged_packets++;
	if (*word >> (nth % 64) & 1) {
		if (!fc_compare_copy(x, placement, piece) && !fc_other_copy_keep(x, record, piece))
			fc_stage_conflict(x, record, piece);
		return;
	}
	/* Read when the job is learned; the commit of the span has the fence. */
	fc_copy_past(placement, piece->payload, piece->payload_bytes,
		     fc_take_ahead(x, piece->payload_bytes));
	x->counters->staged_bytes += piece->payload_bytes;
	fc_set(x, word, *word | 1ull << (nth % 64));
	fc_set(x, &r->packets_seen, r->packets_seen + 1);
	if (r->packets_seen == r->message.packets) {
		struct fc_staging_header *h = x->staging->header;
		fc_set(x, &h->completions, h->completions + 1);
		fc_set(x, &r->completed, h->completions);
		fc_incomplete_end(x, record);
	}
}

static bool same_shape(const struct fc_message *a, const struct fc_message *b)
{
	return a->first_psn == b->first_psn && a->packets == b->packets &&
	       a->length_bytes == b->length_bytes && a->pmtu_bytes == b->pmtu_bytes;
}

/* Position in the message `now` of the byte that was at `at` of `was`. */
static uint64_t moved(const struct fc_message *was, const struct fc_message *now, uint64_t at)
{
	const int64_t by = (int64_t)(was->first_psn - now->first_psn) * now->pmtu_bytes;
	const int64_t to = (int64_t)at + by;

	if (to < 0)
		return 0;
	return (uint64_t)to < now->length_bytes ? (uint64_t)to : now->length_bytes;
}

/* The start of a message came after its end and has another length. The old block stays unchanged
 * until this is committed. */
static bool reshape(struct fc_extractor *x, uint64_t record, const struct fc_message *now)
{
	struct fc_staged *r = &x->staging->records[record];
	const struct fc_message was = r->message;
	const uint64_t old_at = r->block_at, old_bytes = r->block_bytes;
	const uint8_t *old = x->staging->data + old_at;
	const uint64_t old_bitmap = r->bitmap_bytes;
	uint64_t seen = 0;

	if (!fc_record_block(x, r, now))
		return false;
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
	if (r->conflict_stop) {
		fc_set(x, &r->conflict_from, moved(&was, now, r->conflict_from));
		fc_set(x, &r->conflict_stop, moved(&was, now, r->conflict_stop));
	}
	fc_block_free(x, old_at, old_bytes);
	fc_record_describe(x, r, now);
	return true;
}

bool fc_stage_follow(struct fc_extractor *x, uint64_t record, const struct fc_message *now)
{
	struct fc_staged *r = &x->staging->records[record];

	if (!same_shape(&r->message, now))
		return reshape(x, record, now);
	fc_record_describe(x, r, now);
	return true;
}
