/* Bytes in which two packets with the same PSN differ. A step that contains them is not exact. */
#include "fc_staging_ops.h"

void fc_conflict_note(struct fc_extractor *x, const struct fc_placement *placement,
		      uint64_t offset_bytes, const struct fc_packet_payload *piece)
{
	if (fc_placement_kind(placement) == FC_PLACEMENT_STAGED)
		fc_stage_conflict(x, placement->where, piece);
	else if (fc_placement_kind(placement) == FC_PLACEMENT_SHARD)
		fc_place_conflict(x, &x->staging->sends[placement->where], placement->step,
				  offset_bytes, offset_bytes + piece->payload_bytes, piece);
}

/* Whether the message placed there has the same bytes already. In a shard a packet is compared
 * while it is placed; bytes that were missing count as differing as well. */
static bool is_confirmed(struct fc_extractor *x, const struct fc_placement *placement,
			 uint64_t offset_bytes, const struct fc_packet_payload *piece)
{
	const struct fc_extract_counters before = *x->counters;

	fc_deliver(x, placement, offset_bytes, piece);
	return x->counters->conflict_bytes == before.conflict_bytes &&
	       x->counters->placed_bytes == before.placed_bytes &&
	       x->counters->staged_bytes == before.staged_bytes;
}

void fc_compare_alternative(struct fc_extractor *x, uint64_t alternative,
			    const struct fc_placement *own, uint64_t offset_bytes,
			    const struct fc_packet_payload *piece)
{
	const struct fc_placement *placement =
		&x->staging->placements[alternative & x->staging->mask];
	struct fc_message m;

	if (placement->position != alternative || !fc_flows_message(x->flows, alternative, &m) ||
	    m.flow >= FC_FLOWS_MAX)
		return;
	const uint64_t kind = fc_placement_kind(placement);
	if (kind != FC_PLACEMENT_STAGED && kind != FC_PLACEMENT_SHARD)
		return;
	/* Each owner unwraps PSNs on its own. */
	const uint64_t nth = (piece->psn - m.first_psn) & 0xffffff;
	if (fc_bytes_of_packet(&m, nth) != piece->payload_bytes)
		return;
	const struct fc_packet_payload as = { m.flow, m.first_psn + nth, piece->payload,
					      piece->payload_bytes };
	const uint64_t before = x->counters->conflict_bytes;
	if (is_confirmed(x, placement, nth * m.pmtu_bytes, &as))
		return;
	fc_conflict_note(x, placement, nth * m.pmtu_bytes, &as);
	if (own && x->counters->conflict_bytes != before)
		fc_conflict_note(x, own, offset_bytes, piece);
}
