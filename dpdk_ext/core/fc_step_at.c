/* The step of a packet, whether or not it arrived: from the numbers of the messages around it, and
 * from the plan's sizes of messages that did not arrive. The parser and the extractor write
 * meanwhile; an inconsistent read gives no step. */
#include "fc_flow_ops.h"
#include "fc_staging_ops.h"

/* Most messages between the newest one and the last numbered one before the packet, and from there
 * to the packet. */
#define BACK_MAX (1 << 16)
#define ON_MAX (1 << 16)

static uint64_t step_of(const struct fc_flow_plan *plan, uint64_t number, uint64_t *send)
{
	uint64_t nth, step;

	number = fc_number_in_plan(plan, number);
	if (!fc_plan_covers(plan, number) || number < plan->first_number ||
	    !fc_place_in_plan(plan, number, &nth) || !fc_send_in_plan(plan, nth, send, &step))
		return 0;
	return step;
}

/* The last message with a known number that begins at `psn` or before. */
static bool numbered_before(const struct fc_flows *flows, const struct fc_flow_plan *plan,
			    const struct fc_flow *flow, uint64_t psn, struct fc_message *m)
{
	uint64_t position = flow->last_message;

	for (int hops = 0; position && hops < BACK_MAX; hops++) {
		if (!fc_flows_message(flows, position, m))
			return false;
		if (m->first_psn <= psn) {
			fc_number_in_run(plan, m);
			if (m->number != FC_NUMBER_UNKNOWN)
				return true;
		}
		position = m->previous;
	}
	return false;
}

uint64_t fc_step_at(const struct fc_flows *flows, const struct fc_staging *staging, uint32_t flow,
		    uint64_t psn)
{
	const struct fc_flow_plan *plan = &staging->plans[flow];
	struct fc_message m;
	uint64_t send, step;

	if (!numbered_before(flows, plan, &flows->flows[flow], psn, &m))
		return 0;
	uint64_t number = m.number, stop = fc_message_stop(&m);
	if (psn < stop)
		return step_of(plan, number, &send);
	for (int on = 0; on < ON_MAX; on++) {
		step = step_of(plan, ++number, &send);
		if (!step || send >= staging->header->sends_max || !m.pmtu_bytes)
			return step;
		const uint64_t bytes = staging->sends[send].wire_bytes;
		stop += bytes ? (bytes + m.pmtu_bytes - 1) / m.pmtu_bytes : 1;
		if (psn < stop)
			return step;
	}
	return 0;
}
