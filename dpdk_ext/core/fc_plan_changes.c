/* Changes that Python makes between spans: plans, and staged messages that have a plan now. Each
 * change is committed separately. */
#include <errno.h>

#include "fc_error.h"
#include "fc_extract.h"
#include "fc_ll128.h"
#include "fc_nccl.h"
#include "fc_staging_ops.h"

static int check_segments(const struct fc_extractor *x, const struct fc_send *send,
			  const struct fc_segment *segments)
{
	const uint64_t room = send->protocol == FC_PROTOCOL_LL ? send->wire_bytes / 2
			      : fc_is_ll128(send->protocol)
				      ? ((uint64_t)send->skip_lines * FC_LL128_LINE_BYTES +
					 send->wire_bytes + FC_LL128_GROUP_BYTES - 1) /
						FC_LL128_GROUP_BYTES * FC_LL128_GROUP_DATA
				      : send->wire_bytes;
	const uint64_t unit = x->shard->header->unit_bytes;
	const uint64_t gradient = x->shard->header->gradient_bytes;
	const uint64_t buffers = x->shard->header->module_buffer_bytes;
	uint64_t end = 0;

	for (uint32_t i = 0; i < send->segments; i++) {
		const struct fc_segment *s = &segments[send->first_segment + i];
		if (s->data_byte < end || s->data_byte % unit || s->data_bytes % unit ||
		    s->dst_byte % unit || s->dst_byte > gradient + buffers ||
		    s->data_bytes > gradient + buffers - s->dst_byte ||
		    (s->dst_byte < gradient && s->data_bytes > gradient - s->dst_byte))
			return fc_fail(EINVAL, PLAN_SEGMENT_MISPLACED, .numbers = { i });
		end = (uint64_t)s->data_byte + s->data_bytes;
	}
	if (end > room)
		return fc_fail(EINVAL, PLAN_SEGMENTS_TOO_LONG, .numbers = { end, room });
	return 0;
}

static int check_send(const struct fc_extractor *x, const struct fc_send *send,
		      const struct fc_segment *segments, uint64_t segments_count)
{
	if (send->kind > FC_SEND_FINAL || send->protocol >= FC_PROTOCOLS ||
	    send->skip_lines >= FC_LL128_GROUP_LINES || send->first_segment > segments_count ||
	    send->segments > segments_count - send->first_segment)
		return fc_fail(EINVAL, PLAN_SEGMENTS_MISSING);
	if (send->kind != FC_SEND_FINAL)
		return 0;
	if (!x->shard)
		return fc_fail(EINVAL, PLAN_WITHOUT_SHARD);
	return check_segments(x, send, segments);
}

/* Numbers the staged messages of a flow by their position in a run. Repeating it has the same
 * result. */
static void number_staged(struct fc_extractor *x, uint32_t flow, const struct fc_flow_plan *plan)
{
	struct fc_message m;

	for (uint64_t i = 0; plan->run_psn && i < x->staging->header->records_used; i++) {
		struct fc_staged *r = &x->staging->records[i];
		if (!r->state || r->message.flow != flow)
			continue;
		m = r->message;
		fc_number_in_run(plan, &m);
		fc_change_begin(x);
		fc_set(x, &r->message.number, m.number);
		fc_change_end(x);
	}
}

int fc_plan_install(struct fc_extractor *x, uint32_t flow, const struct fc_flow_plan *plan,
		    const struct fc_send *sends, uint64_t sends_count,
		    const struct fc_segment *segments, uint64_t segments_count)
{
	struct fc_staging_header *h = x->staging->header;
	const uint64_t at = h->sends_used, first_segment = h->segments_used;

	if (flow >= FC_FLOWS_MAX || plan->first_at > sends_count || plan->each_at > sends_count ||
	    plan->first_sends > sends_count - plan->first_at ||
	    plan->each_sends > sends_count - plan->each_at)
		return fc_fail(EINVAL, PLAN_SENDS_MISSING, .numbers = { flow });
	if (plan->phase >= plan->stride)
		return fc_fail(EINVAL, PLAN_TURN_REFUSED,
			       .numbers = { flow, plan->phase, plan->stride });
	if (plan->second_at != UINT64_MAX && plan->second_at > plan->first_sends)
		return fc_fail(EINVAL, PLAN_SECOND_STEP_REFUSED, .numbers = { flow });
	if (plan->frontier != FC_NO_FRONTIER && (plan->frontier >= FC_FRONTIERS || !x->shard))
		return fc_fail(EINVAL, PLAN_FRONTIER_MISSING, .numbers = { flow });
	if (sends_count > h->sends_max - at || segments_count > h->segments_max - first_segment)
		return fc_fail(ENOSPC, PLAN_WITHOUT_ROOM,
			       .numbers = { sends_count, segments_count });
	for (uint64_t i = 0; i < sends_count; i++) {
		const int code = check_send(x, &sends[i], segments, segments_count);
		if (code < 0)
			return code;
		x->staging->sends[at + i] = sends[i];
		x->staging->sends[at + i].first_segment += (uint32_t)first_segment;
	}
	if (segments_count)
		memcpy(&x->staging->segments[first_segment], segments,
		       segments_count * sizeof *segments);
	struct fc_flow_plan *kept = &x->staging->plans[flow];
	number_staged(x, flow, plan);
	fc_change_begin(x);
	fc_set(x, &h->sends_used, at + sends_count);
	fc_set(x, &h->segments_used, first_segment + segments_count);
	fc_set(x, &kept->state, FC_PLAN_UNKNOWN);
	fc_set(x, &kept->first_number, plan->first_number);
	fc_set(x, &kept->first_step, plan->first_step);
	fc_set(x, &kept->first_sends, plan->first_sends);
	fc_set(x, &kept->each_sends, plan->each_sends);
	fc_set(x, &kept->first_at, at + plan->first_at);
	fc_set(x, &kept->each_at, at + plan->each_at);
	fc_set(x, &kept->flag_offset, plan->flag_offset);
	fc_set(x, &kept->last_step, 0);
	fc_set(x, &kept->deviating_number, UINT64_MAX);
	fc_set(x, &kept->next_number, 0);
	fc_set(x, &kept->skips_used, 0);
	fc_set(x, &kept->frontier, plan->frontier);
	fc_set(x, &kept->stride, plan->stride);
	fc_set(x, &kept->phase, plan->phase);
	fc_set(x, &kept->second_at, plan->second_at);
	fc_set(x, &kept->run_psn, plan->run_psn);
	fc_set(x, &kept->run_shift, plan->run_shift);
	fc_set(x, &kept->state, plan->state);
	fc_orphans_replanned(x);
	if (plan->state == FC_PLAN_IGNORE)
		fc_orphans_ignore(x, flow);
	fc_change_end(x);
	return 0;
}

int fc_plan_set(struct fc_extractor *x, uint32_t flow, uint64_t state)
{
	if (flow >= FC_FLOWS_MAX || state > FC_PLAN_SUSPENDED || state == FC_PLAN_ACTIVE)
		return fc_fail(EINVAL, PLAN_STATE_REFUSED, .numbers = { flow, state });
	fc_change_begin(x);
	fc_set(x, &x->staging->plans[flow].state, state);
	fc_orphans_replanned(x);
	if (state == FC_PLAN_IGNORE)
		fc_orphans_ignore(x, flow);
	fc_change_end(x);
	return 0;
}

void fc_plans_forget(struct fc_extractor *x)
{
	struct fc_staging_header *h = x->staging->header;

	fc_orphans_replanned(x);
	/* Before the tables that it names are freed; repeated after a kill it has the same result.
	 */
	fc_ignore_placed(x);
	for (uint32_t flow = 0; flow < FC_FLOWS_MAX; flow++) {
		struct fc_flow_plan *plan = &x->staging->plans[flow];
		if (!fc_plan_follows(plan))
			continue;
		fc_change_begin(x);
		fc_set(x, &plan->state, FC_PLAN_UNKNOWN);
		fc_change_end(x);
	}
	fc_change_begin(x);
	fc_set(x, &h->sends_used, 0);
	fc_set(x, &h->segments_used, 0);
	fc_change_end(x);
}

int fc_plan_resume(struct fc_extractor *x, uint32_t flow)
{
	if (flow >= FC_FLOWS_MAX || x->staging->plans[flow].state != FC_PLAN_SUSPENDED)
		return fc_fail(EINVAL, PLAN_NOT_SUSPENDED, .numbers = { flow });
	fc_change_begin(x);
	fc_set(x, &x->staging->plans[flow].deviating_number, UINT64_MAX);
	fc_set(x, &x->staging->plans[flow].state, FC_PLAN_ACTIVE);
	fc_change_end(x);
	return 0;
}

int fc_plan_skip(struct fc_extractor *x, uint32_t flow, const struct fc_skip *skip)
{
	if (flow >= FC_FLOWS_MAX || skip->resume < skip->from)
		return fc_fail(EINVAL, SKIP_REVERSED, .numbers = { flow });
	struct fc_flow_plan *plan = &x->staging->plans[flow];
	if (!fc_plan_follows(plan))
		return fc_fail(EINVAL, SKIP_WITHOUT_PLAN, .numbers = { flow });
	if (plan->skips_used &&
	    skip->from < plan->skips[(plan->skips_used - 1) % FC_FLOW_SKIPS].resume)
		return fc_fail(EINVAL, SKIP_BEFORE_LAST, .numbers = { flow, skip->from });
	struct fc_skip *kept = &plan->skips[plan->skips_used % FC_FLOW_SKIPS];
	fc_change_begin(x);
	fc_set(x, &kept->from, skip->from);
	fc_set(x, &kept->resume, skip->resume);
	fc_set(x, &kept->skipped, skip->skipped);
	fc_set(x, &plan->skips_used, plan->skips_used + 1);
	fc_set(x, &plan->deviating_number, UINT64_MAX);
	fc_set(x, &plan->state, FC_PLAN_ACTIVE);
	fc_change_end(x);
	return 0;
}

uint64_t fc_frontier(const struct fc_extractor *x, uint32_t flow)
{
	return fc_plan_frontier(x, &x->staging->plans[flow]);
}

int fc_frontier_pass(struct fc_extractor *x, uint32_t flow, uint64_t number)
{
	if (flow >= FC_FLOWS_MAX || x->staging->plans[flow].state == FC_PLAN_UNKNOWN ||
	    x->staging->plans[flow].frontier == FC_NO_FRONTIER || number < fc_frontier(x, flow))
		return fc_fail(EINVAL, FRONTIER_NOT_BEFORE, .numbers = { flow, number });
	fc_change_begin(x);
	fc_set(x, fc_shard_frontier(x->shard, x->staging->plans[flow].frontier), number);
	fc_change_end(x);
	return 0;
}

void fc_ignore_placed(struct fc_extractor *x)
{
	/* Without journal: repeated it has the same result. */
	for (uint64_t i = 0; i <= x->staging->mask; i++)
		if (fc_placement_kind(&x->staging->placements[i]) == FC_PLACEMENT_SHARD)
			x->staging->placements[i].kind = FC_PLACEMENT_IGNORED;
}

/* Sets the placement of a staged message, if the pool still has the message. */
static void redirect(struct fc_extractor *x, const struct fc_message *m, uint64_t kind,
		     uint64_t where, uint64_t step)
{
	if (x->staging->placements[m->position & x->staging->mask].position == m->position)
		fc_placement_set(x, m->position, kind, where, step);
}

/* Moves the received packets of a message to the shard. Each packet's bit moves with it, so that a
 * commit in between loses no count. */
static void move_packets(struct fc_extractor *x, struct fc_staged *r,
			 const struct fc_placement_decision *d)
{
	uint64_t *bitmap = (uint64_t *)(x->staging->data + r->block_at);
	const uint8_t *payload = (const uint8_t *)bitmap + r->bitmap_bytes;
	const struct fc_message *m = &r->message;
	const uint64_t pmtu = m->packets > 1 ? m->pmtu_bytes : m->length_bytes;

	for (uint64_t nth = 0; nth < m->packets; nth++) {
		if (!(bitmap[nth / 64] >> (nth % 64) & 1))
			continue;
		if (fc_journal_left(x) < FC_JOURNAL_PACKET) {
			fc_change_end(x);
			fc_change_begin(x);
		}
		const uint64_t offset = nth * pmtu;
		const uint64_t left = m->length_bytes - offset;
		const struct fc_packet_payload piece = {
			.flow = m->flow,
			.psn = m->first_psn + nth,
			.payload = payload + offset,
			.payload_bytes = (uint32_t)(left < pmtu ? left : pmtu),
		};
		fc_place_packet(x, &x->staging->sends[d->send], d->step, d->flag, offset, &piece);
		fc_set(x, &bitmap[nth / 64], bitmap[nth / 64] & ~(1ull << (nth % 64)));
	}
}

int fc_staged_place(struct fc_extractor *x, uint64_t record, uint64_t number)
{
	struct fc_staged *r = &x->staging->records[record];

	fc_staged_refresh(x, record);
	struct fc_message m = r->message;
	if (m.number == FC_NUMBER_UNKNOWN)
		m.number = number;
	const struct fc_placement_decision d = fc_placement_decide(x, &m);
	fc_want_step(x, &d);
	fc_change_begin(x);
	fc_placement_note(x, &m, &d);
	if (d.kind == FC_PLACEMENT_SHARD) {
		fc_place_conflict(x, &x->staging->sends[d.send], d.step, r->conflict_from,
				  r->conflict_stop, NULL);
		fc_set(x, &r->conflict_stop, r->conflict_from);
		/* The move may be committed half-way, so the message must not look complete. */
		fc_set(x, &r->completed, 0);
		move_packets(x, r, &d);
		fc_other_copies_place(x, record, &d);
	}
	if (d.kind != FC_PLACEMENT_STAGED) {
		redirect(x, &m, d.kind | (uint64_t)d.flag << 32, d.send, d.step);
		fc_record_free(x, record);
	}
	fc_change_end(x);
	return d.kind != FC_PLACEMENT_STAGED;
}

uint64_t fc_staged_place_many(struct fc_extractor *x, const uint64_t *records,
			      const uint64_t *numbers, uint64_t count, uint64_t limit_bytes,
			      uint64_t *looked)
{
	uint64_t left = 0, moved = 0, i;

	for (i = 0; i < count && moved < limit_bytes; i++) {
		const uint64_t bytes = x->staging->records[records[i]].message.length_bytes;
		if (!fc_staged_place(x, records[i], numbers[i]))
			continue;
		left++;
		moved += bytes;
	}
	*looked = i;
	return left;
}

void fc_staged_release(struct fc_extractor *x, uint64_t record)
{
	fc_change_begin(x);
	redirect(x, &x->staging->records[record].message, FC_PLACEMENT_IGNORED, 0, 0);
	fc_record_free(x, record);
	fc_change_end(x);
}

void fc_staged_refresh(struct fc_extractor *x, uint64_t record)
{
	struct fc_staged *r = &x->staging->records[record];
	struct fc_message m;

	if (!fc_flows_message(x->flows, r->message.position, &m) ||
	    m.first_psn != r->message.first_psn || m.packets != r->message.packets ||
	    m.length_bytes != r->message.length_bytes)
		return;
	fc_change_begin(x);
	fc_record_describe(x, r, &m);
	fc_change_end(x);
}

void fc_staged_refresh_all(struct fc_extractor *x)
{
	for (uint64_t i = 0; i < x->staging->header->records_used; i++)
		if (x->staging->records[i].state)
			fc_staged_refresh(x, i);
}
