/* The placement of a message: where its packets go (staging, shard, ignored, dropped). It is chosen
 * with the first packet and stored, so that all packets go the same way. */
#include "fc_ll128.h"
#include "fc_roce.h"
#include "fc_staging_ops.h"

#define FLAG_SHIFT 32

/* Whether `step`, of which nothing is placed now, will never have a generation again. */
static bool is_past(const struct fc_extractor *x, uint64_t step)
{
	if (!x->shard)
		return false;
	if (fc_shard_applied(x->shard) >= step)
		return true;
	for (int i = 0; i < FC_GENERATIONS; i++) {
		const struct fc_generation *g = &x->shard->header->generations[i];
		if (g->state != FC_GENERATION_EMPTY &&
		    (g->step > step || (g->step == step && g->state == FC_GENERATION_LOST)))
			return true;
	}
	return false;
}

static bool flag_known(const struct fc_flow_plan *plan, const struct fc_message *m, uint64_t number,
		       uint32_t *flag)
{
	if (plan->flag_offset != UINT64_MAX)
		*flag = (uint32_t)(number + plan->flag_offset);
	else if (m->flags & FC_MESSAGE_LINE_FLAG)
		*flag = m->line_flag;
	else
		return m->length_bytes == 0;
	return true;
}

bool fc_place_in_plan(const struct fc_flow_plan *plan, uint64_t number, uint64_t *nth)
{
	const uint64_t kept = plan->skips_used < FC_FLOW_SKIPS ? plan->skips_used : FC_FLOW_SKIPS;
	uint64_t skipped = 0, left = kept;

	for (; left; left--) {
		const struct fc_skip *skip =
			&plan->skips[(plan->skips_used - 1 - (kept - left)) % FC_FLOW_SKIPS];
		if (number < skip->from)
			continue;
		if (number < skip->resume)
			return false;
		skipped = skip->skipped;
		break;
	}
	if (!left && plan->skips_used > kept)
		return false;
	*nth = number - plan->first_number - skipped;
	return true;
}

uint64_t fc_plan_frontier(const struct fc_extractor *x, const struct fc_flow_plan *plan)
{
	const uint64_t kept = plan->skips_used < FC_FLOW_SKIPS ? plan->skips_used : FC_FLOW_SKIPS;
	uint64_t at = *fc_shard_frontier(x->shard, plan->frontier);

	if (at < plan->first_number)
		at = plan->first_number;
	for (uint64_t n = plan->skips_used - kept; n < plan->skips_used; n++) {
		const struct fc_skip *skip = &plan->skips[n % FC_FLOW_SKIPS];
		/* If earlier skips are no longer stored, messages before the oldest stored one
		 * belong to no step. */
		const bool forgotten = plan->skips_used > kept && n == plan->skips_used - kept;
		if (at < skip->resume && (forgotten || at >= skip->from))
			at = skip->resume;
	}
	return at;
}

/* Whether all messages before `number` were reported. A message after a missing one stays staged,
 * since a collective without a plan may have used its number. */
static bool in_turn(const struct fc_extractor *x, const struct fc_flow_plan *plan, uint64_t number)
{
	return plan->frontier == FC_NO_FRONTIER || number <= fc_plan_frontier(x, plan);
}

uint64_t fc_plan_place(const struct fc_extractor *x, uint32_t flow, uint64_t number)
{
	const struct fc_flow_plan *plan = &x->staging->plans[flow];
	uint64_t nth;

	return number >= plan->first_number && fc_place_in_plan(plan, number, &nth) ? nth
										    : UINT64_MAX;
}

bool fc_send_in_plan(const struct fc_flow_plan *plan, uint64_t nth, uint64_t *send, uint64_t *step)
{
	if (nth < plan->first_sends) {
		*send = plan->first_at + nth;
		*step = plan->first_step + (nth >= plan->second_at);
		return true;
	}
	if (!plan->each_sends)
		return false;
	nth -= plan->first_sends;
	*send = plan->each_at + nth % plan->each_sends;
	*step = plan->first_step + (plan->second_at == UINT64_MAX ? 1 : 2) + nth / plan->each_sends;
	return true;
}

static void decide_by_number(const struct fc_extractor *x, const struct fc_flow_plan *plan,
			     const struct fc_message *m, uint64_t number,
			     struct fc_placement_decision *d)
{
	uint64_t nth;

	if (!fc_place_in_plan(plan, number, &nth) ||
	    !fc_send_in_plan(plan, nth, &d->send, &d->step)) {
		d->kind = FC_PLACEMENT_IGNORED;
		return;
	}
	const struct fc_send *send = &x->staging->sends[d->send];
	if (send->wire_bytes != m->length_bytes) {
		d->deviates = true;
		return;
	}
	d->of_step = true;
	if (!in_turn(x, plan, number))
		return;
	if (send->kind != FC_SEND_FINAL)
		d->kind = FC_PLACEMENT_IGNORED;
	else if (fc_place_generation(x, d->step) < 0) {
		d->unopened = !is_past(x, d->step);
		d->kind = d->unopened ? FC_PLACEMENT_STAGED : FC_PLACEMENT_IGNORED;
	} else if (fc_is_ll128(send->protocol) && plan->flag_offset == UINT64_MAX)
		d->kind = FC_PLACEMENT_SHARD; /* flags of a packet are compared with each other */
	else if (send->protocol == FC_PROTOCOL_SIMPLE || flag_known(plan, m, number, &d->flag))
		d->kind = FC_PLACEMENT_SHARD;
}

bool fc_plan_covers(const struct fc_flow_plan *plan, uint64_t number)
{
	if (number == FC_NUMBER_UNKNOWN)
		return false;
	return plan->state == FC_PLAN_ACTIVE ||
	       (plan->state == FC_PLAN_SUSPENDED && plan->deviating_number != UINT64_MAX &&
		number < plan->deviating_number);
}

struct fc_placement_decision fc_placement_decide(const struct fc_extractor *x,
						 const struct fc_message *m)
{
	const struct fc_flow_plan *plan = &x->staging->plans[m->flow];
	const uint64_t number = fc_number_in_plan(plan, m->number);
	struct fc_placement_decision d = { .kind = FC_PLACEMENT_STAGED };

	if (plan->state == FC_PLAN_IGNORE)
		d.kind = FC_PLACEMENT_IGNORED;
	else if (m->standing == FC_STANDING_UNPROVEN)
		d.kind = FC_PLACEMENT_STAGED; /* may be forged by another sender */
	else if (fc_plan_covers(plan, number)) {
		if (number < plan->first_number || m->flags & FC_MESSAGE_CLOSING)
			d.kind = FC_PLACEMENT_IGNORED;
		else
			decide_by_number(x, plan, m, number, &d);
	}
	return d;
}

void fc_placement_note(struct fc_extractor *x, const struct fc_message *m,
		       const struct fc_placement_decision *decision)
{
	struct fc_flow_plan *plan = &x->staging->plans[m->flow];
	const uint64_t number = fc_number_in_plan(plan, m->number);

	if (decision->of_step && decision->step > plan->last_step)
		fc_set(x, &plan->last_step, decision->step);
	if (decision->of_step && decision->kind != FC_PLACEMENT_STAGED &&
	    number >= plan->next_number)
		fc_set(x, &plan->next_number, number + 1);
	if (decision->of_step && plan->frontier != FC_NO_FRONTIER &&
	    number == fc_plan_frontier(x, plan))
		fc_set(x, fc_shard_frontier(x->shard, plan->frontier), number + 1);
	if (decision->deviates) {
		fc_set(x, &plan->deviating_number, number);
		fc_set(x, &plan->state, FC_PLAN_SUSPENDED);
		x->counters->deviating_messages++;
	}
}

void fc_placement_set(struct fc_extractor *x, uint64_t position, uint64_t kind, uint64_t where,
		      uint64_t step)
{
	struct fc_placement *placement = &x->staging->placements[position & x->staging->mask];

	fc_set(x, &placement->kind, kind);
	fc_set(x, &placement->where, where);
	fc_set(x, &placement->step, step);
	fc_set(x, &placement->position, position);
}

void fc_note_full(struct fc_extractor *x, uint64_t flow, uint64_t packets)
{
	x->counters->staging_full_packets += packets;
	if (x->staging->plans[flow].state == FC_PLAN_UNKNOWN)
		x->counters->unlearned_full_packets += packets;
}

void fc_deliver(struct fc_extractor *x, const struct fc_placement *placement, uint64_t offset_bytes,
		const struct fc_packet_payload *piece)
{
	switch (fc_placement_kind(placement)) {
	case FC_PLACEMENT_STAGED:
		fc_stage_packet(x, placement->where, piece);
		break;
	case FC_PLACEMENT_SHARD:
		fc_place_packet(x, &x->staging->sends[placement->where], placement->step,
				(uint32_t)(placement->kind >> FLAG_SHIFT), offset_bytes, piece);
		break;
	case FC_PLACEMENT_DROPPED:
		fc_note_full(x, piece->flow, 1);
		break;
	default:
		x->counters->ignored_packets++;
	}
}

void fc_deliver_orphan(struct fc_extractor *x, const struct fc_placement *placement,
		       const struct fc_message *m, const struct fc_packet_payload *piece,
		       bool differs)
{
	const uint64_t nth = piece->psn - m->first_psn;

	if (fc_bytes_of_packet(m, nth) != piece->payload_bytes) {
		x->counters->ignored_packets++; /* contains no packet of this message */
		return;
	}
	fc_deliver(x, placement, nth * m->pmtu_bytes, piece);
	if (differs)
		fc_conflict_note(x, placement, nth * m->pmtu_bytes, piece);
}

/* Delivers packets that arrived before their message was known. Returns FC_SLOT_NEEDS_COMMIT if
 * the journal has no room for more of them in this change; they stay. */
static enum fc_slot_result deliver_held(struct fc_extractor *x,
					const struct fc_placement *placement,
					const struct fc_message *m)
{
	const uint64_t stop = m->first_psn + m->packets;
	uint64_t i;

	while ((i = fc_orphan_find(x, m->flow, m->first_psn, stop)) != UINT64_MAX) {
		const struct fc_orphan *orphan = &x->staging->orphans[i];
		const struct fc_packet_payload piece = {
			.flow = orphan->flow,
			.psn = orphan->psn,
			.payload = x->staging->orphan_data + i * FC_ORPHAN_BYTES,
			.payload_bytes = (uint32_t)orphan->payload_bytes,
		};
		if (fc_journal_left(x) < 3 * FC_JOURNAL_PACKET)
			return FC_SLOT_NEEDS_COMMIT;
		fc_deliver_orphan(x, placement, m, &piece, orphan->differs != 0);
		fc_orphan_release(x, i);
	}
	return FC_SLOT_DONE;
}

/* Delivers those that did not fit into the previous change. Its slot is the first of this change,
 * also for an extractor that was killed between the two. */
static enum fc_slot_result deliver_rest(struct fc_extractor *x, const struct fc_mark *mark,
					const struct fc_placement *placement)
{
	struct fc_message m;

	if (!x->first_slot || !x->staging->header->orphans_used ||
	    !fc_flows_message(x->flows, mark->message, &m))
		return FC_SLOT_DONE;
	return deliver_held(x, placement, &m);
}

/* There is no room to stage message `m`. Nothing was changed for it so far. */
static enum fc_slot_result without_room(struct fc_extractor *x, const struct fc_message *m)
{
	if (!fc_record_fits(x, m))
		return FC_SLOT_DONE;
	if (x->freed || fc_incomplete_reclaim(x, m))
		return FC_SLOT_NEEDS_COMMIT;
	return x->block && !x->ring->header->live_source ? FC_SLOT_WAITS : FC_SLOT_DONE;
}

void fc_want_step(struct fc_extractor *x, const struct fc_placement_decision *decision)
{
	if (decision->unopened && decision->step > x->wanted_step)
		x->wanted_step = decision->step;
}

/* Whether a generation can be opened for `step` now: it is one of the next, and the memory of one
 * is free, or of a step that was applied. */
static bool can_open(const struct fc_extractor *x, uint64_t step)
{
	const uint64_t applied = fc_shard_applied(x->shard);

	if (step > applied + FC_GENERATIONS)
		return false;
	for (uint32_t i = 0; i < FC_GENERATIONS; i++)
		if (fc_shard_state(x->shard, i) == FC_GENERATION_EMPTY ||
		    fc_shard_step(x->shard, i) <= applied)
			return true;
	return false;
}

/* Whether the span ends before a message, so that its step is opened and it need not be staged:
 * once for each step, as whoever opens it may have to wait. */
static bool asks_for_step(struct fc_extractor *x, const struct fc_placement_decision *d)
{
	fc_want_step(x, d);
	if (!d->unopened || d->step <= x->asked_step || !can_open(x, d->step))
		return false;
	x->asked_step = d->step;
	return true;
}

/* Chooses the placement of the message in `mark`; FC_SLOT_DONE: it has one now. */
static enum fc_slot_result settle(struct fc_extractor *x, const struct fc_mark *mark,
				  const struct fc_placement *placement)
{
	struct fc_message m;
	uint64_t where;

	if (!fc_flows_message(x->flows, mark->message, &m) || m.flow >= FC_FLOWS_MAX) {
		fc_placement_set(x, mark->message, FC_PLACEMENT_IGNORED, 0, 0);
		return FC_SLOT_DONE;
	}
	fc_number_in_run(&x->staging->plans[m.flow], &m);
	struct fc_placement_decision d = fc_placement_decide(x, &m);
	if (asks_for_step(x, &d))
		return FC_SLOT_NEEDS_STEP;
	where = d.send;
	if (d.kind == FC_PLACEMENT_STAGED) {
		where = fc_record_allocate(x, &m);
		const enum fc_slot_result end =
			where == UINT64_MAX ? without_room(x, &m) : FC_SLOT_DONE;
		if (end != FC_SLOT_DONE)
			return end;
		if (where == UINT64_MAX)
			d.kind = FC_PLACEMENT_DROPPED;
	}
	fc_placement_note(x, &m, &d);
	fc_placement_set(x, mark->message, d.kind | (uint64_t)d.flag << FLAG_SHIFT, where, d.step);
	return deliver_held(x, placement, &m);
}

/* A staged message turned out to be longer and there is no room for it: its bytes can no longer be
 * located, so it is dropped. */
static void drop_staged(struct fc_extractor *x, const struct fc_placement *placement)
{
	const struct fc_staged *r = &x->staging->records[placement->where];

	fc_note_full(x, r->message.flow, r->packets_seen);
	fc_record_free(x, placement->where);
	fc_placement_set(x, placement->position, FC_PLACEMENT_DROPPED, 0, 0);
}

/* Updates a staged message with what the parser learned from this packet. */
static enum fc_slot_result follow(struct fc_extractor *x, const struct fc_mark *mark,
				  const struct fc_placement *placement)
{
	const struct fc_message *kept = &x->staging->records[placement->where].message;
	struct fc_message m;

	if (!fc_flows_message(x->flows, mark->message, &m))
		return FC_SLOT_DONE;
	const bool moved = m.first_psn != kept->first_psn || m.packets != kept->packets;
	/* Only a packet with RETH changes the length; for any other packet the record was read
	 * while it was written. */
	if (moved && !fc_has_reth(mark->opcode))
		return FC_SLOT_DONE;
	if (!fc_stage_follow(x, placement->where, &m)) {
		const enum fc_slot_result end = without_room(x, &m);
		if (end != FC_SLOT_DONE)
			return end;
		drop_staged(x, placement);
	}
	return moved ? deliver_held(x, placement, &m) : FC_SLOT_DONE;
}

enum fc_slot_result fc_deliver_packet(struct fc_extractor *x, const struct fc_mark *mark,
				      const struct fc_packet_payload *piece)
{
	struct fc_placement *placement = &x->staging->placements[mark->message & x->staging->mask];
	enum fc_slot_result end = FC_SLOT_DONE;

	if (FC_UNLIKELY(placement->position != mark->message)) {
		if (x->staging->plans[mark->flow].state == FC_PLAN_IGNORE) {
			x->counters->ignored_packets++;
			return FC_SLOT_DONE;
		}
		end = settle(x, mark, placement);
	} else {
		end = deliver_rest(x, mark, placement);
		if (end == FC_SLOT_DONE && placement->kind == FC_PLACEMENT_STAGED &&
		    mark->opcode != FC_RC_WRITE_MIDDLE)
			end = follow(x, mark, placement);
	}
	if (end != FC_SLOT_DONE)
		return end;
	fc_deliver(x, placement, mark->offset_bytes, piece);
	if (FC_UNLIKELY(mark->alternative))
		fc_compare_alternative(x, mark->alternative, mark->same_headers ? placement : NULL,
				       mark->offset_bytes, piece);
	return end;
}
