/* Copies of staged packets that have other bytes than the first one: they are kept until their
 * message has a place, and compared there as if they had come then. */
#include "fc_staging_ops.h"

static uint8_t *bytes_of(const struct fc_extractor *x, uint64_t index)
{
	return x->staging->other_data + index * FC_ORPHAN_BYTES;
}

bool fc_other_copy_keep(struct fc_extractor *x, uint64_t record,
			const struct fc_packet_payload *piece)
{
	struct fc_staging_header *h = x->staging->header;
	const uint64_t position = x->staging->records[record].message.position;
	uint64_t room = UINT64_MAX;

	for (uint64_t i = 0; i < FC_OTHER_COPIES; i++) {
		const struct fc_other_copy *one = &x->staging->others[i];
		if (!one->used) {
			/* Memory that was in use under the last commit stays as it is. */
			if (room == UINT64_MAX && x->other_freed[i] != x->change)
				room = i;
			continue;
		}
		if (one->position == position && one->psn == piece->psn &&
		    one->payload_bytes == piece->payload_bytes &&
		    !memcmp(bytes_of(x, i), piece->payload, piece->payload_bytes))
			return true; /* the same came before */
	}
	if (room == UINT64_MAX)
		return false;
	struct fc_other_copy *kept = &x->staging->others[room];
	memcpy(bytes_of(x, room), piece->payload, piece->payload_bytes);
	fc_set(x, &kept->position, position);
	fc_set(x, &kept->psn, piece->psn);
	fc_set(x, &kept->payload_bytes, piece->payload_bytes);
	fc_set(x, &kept->used, 1);
	fc_set(x, &h->others_used, h->others_used + 1);
	return true;
}

static void let_go(struct fc_extractor *x, uint64_t index)
{
	struct fc_staging_header *h = x->staging->header;

	x->other_freed[index] = x->change;
	fc_set(x, &x->staging->others[index].used, 0);
	fc_set(x, &h->others_used, h->others_used - 1);
}

void fc_other_copies_free(struct fc_extractor *x, uint64_t position)
{
	for (uint64_t i = 0; x->staging->header->others_used && i < FC_OTHER_COPIES; i++)
		if (x->staging->others[i].used && x->staging->others[i].position == position)
			let_go(x, i);
}

/* Its bytes were counted when it came. */
static void place(struct fc_extractor *x, const struct fc_message *m,
		  const struct fc_placement_decision *d, const struct fc_packet_payload *piece)
{
	const uint64_t nth = piece->psn - m->first_psn;
	const struct fc_extract_counters before = *x->counters;

	if (fc_bytes_of_packet(m, nth) != piece->payload_bytes)
		return;
	fc_place_packet(x, &x->staging->sends[d->send], d->step, d->flag, nth * m->pmtu_bytes,
			piece);
	x->counters->placed_packets = before.placed_packets;
	x->counters->duplicate_bytes = before.duplicate_bytes;
	x->counters->conflict_bytes = before.conflict_bytes;
}

void fc_other_copies_place(struct fc_extractor *x, uint64_t record,
			   const struct fc_placement_decision *d)
{
	const struct fc_message *m = &x->staging->records[record].message;

	for (uint64_t i = 0; x->staging->header->others_used && i < FC_OTHER_COPIES; i++) {
		const struct fc_other_copy *one = &x->staging->others[i];
		if (!one->used || one->position != m->position)
			continue;
		if (fc_journal_left(x) < FC_JOURNAL_PACKET) {
			fc_change_end(x);
			fc_change_begin(x);
		}
		const struct fc_packet_payload piece = {
			.flow = m->flow,
			.psn = one->psn,
			.payload = bytes_of(x, i),
			.payload_bytes = (uint32_t)one->payload_bytes,
		};
		place(x, m, d, &piece);
		let_go(x, i);
	}
}
