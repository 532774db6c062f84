/* Bytes in which two packets with the same PSN differ. A step that contains them is not exact. */
#include "fc_staging_ops.h"

void fc_contest(struct fc_extractor *x, const struct fc_home *home, const struct fc_piece *piece)
{
	if (fc_home_kind(home) == FC_HOME_STAGED)
		fc_stage_conflict(x, home->where, piece);
	else if (fc_home_kind(home) == FC_HOME_SHARD)
		fc_place_conflict(x, &x->staging->sends[home->where], home->step,
				  piece->payload_bytes);
}

/* Whether the message at `home` has the same bytes already. In a shard a packet is compared while
 * it is placed; bytes that were missing count as contested as well. */
static bool is_confirmed(struct fc_extractor *x, const struct fc_home *home, uint64_t offset_bytes,
			 const struct fc_piece *piece)
{
	const struct fc_extract_counters before = *x->counters;

	fc_home_deliver(x, home, offset_bytes, piece);
	return x->counters->conflict_bytes == before.conflict_bytes &&
	       x->counters->placed_bytes == before.placed_bytes &&
	       x->counters->staged_bytes == before.staged_bytes;
}

void fc_contest_packet(struct fc_extractor *x, uint64_t rival, const struct fc_home *own,
		       const struct fc_piece *piece)
{
	const struct fc_home *home = &x->staging->homes[rival & x->staging->mask];
	struct fc_message m;

	if (home->position != rival || !fc_flows_message(x->flows, rival, &m) ||
	    m.flow >= FC_FLOWS_MAX)
		return;
	const uint64_t kind = fc_home_kind(home);
	if (kind != FC_HOME_STAGED && kind != FC_HOME_SHARD)
		return;
	/* Each owner unwraps PSNs on its own. */
	const uint64_t nth = (piece->psn - m.first_psn) & 0xffffff;
	if (fc_bytes_of_packet(&m, nth) != piece->payload_bytes)
		return;
	const struct fc_piece as = { m.flow, m.first_psn + nth, piece->payload,
				     piece->payload_bytes };
	const uint64_t before = x->counters->conflict_bytes;
	if (is_confirmed(x, home, nth * m.pmtu_bytes, &as))
		return;
	fc_contest(x, home, &as);
	if (own && x->counters->conflict_bytes != before)
		fc_contest(x, own, piece);
}
