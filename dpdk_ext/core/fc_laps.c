/* Blind for exactly as many packets as there are PSNs, or a multiple: what comes next seems to go
 * on where the flow was. A lap takes its time, so only behind a pause that is long enough may one
 * have passed; LL's lines then tell, as each message's flag is one more than that of the message
 * before it. Where nothing tells, the pause is counted, for what rests on it to say so. */
#include "fc_owners.h"

/* No port is faster, in bytes per nanosecond: 1.6 Tb/s. */
#define LINE_BYTES_PER_NS 200u
/* Nor does a flow send so many times faster than it has on average, pauses included, for the time
 * of a lap; told from this many packets on. */
#define FASTER 8u
#define AVERAGE_OF 4096

/* May a lap have passed since then? */
static bool lap_fits(const struct fc_arrival *a, uint64_t since_ns)
{
	const struct fc_flow *flow = a->flow;

	if (!since_ns || a->now_ns <= since_ns || since_ns <= flow->first_ns ||
	    flow->write_packets < AVERAGE_OF)
		return false;
	const uint64_t pause_ns = a->now_ns - since_ns;
	if (pause_ns < FC_PAUSE_NS ||
	    pause_ns < (uint64_t)flow->pmtu_bytes * FC_PSN_LAP / LINE_BYTES_PER_NS)
		return false;
	const unsigned __int128 packets = (unsigned __int128)flow->write_packets * pause_ns;
	return packets * FASTER >= (unsigned __int128)FC_PSN_LAP * (since_ns - flow->first_ns);
}

/* The flag that LL's lines have in the flow's next message, which is not known yet; 0: they do
 * not count messages, as far as its last two show. */
static uint32_t next_flag(const struct fc_arrival *a, const struct fc_message *last)
{
	const struct fc_message *before = fc_message_at(a->parser->flows, last->previous);

	if (!before || !(last->flags & before->flags & FC_MESSAGE_LINE_FLAG) ||
	    last->number == FC_NUMBER_UNKNOWN || before->number == FC_NUMBER_UNKNOWN ||
	    last->line_flag - before->line_flag != (uint32_t)(last->number - before->number))
		return 0;
	return last->line_flag + 1;
}

bool fc_lap_on(struct fc_arrival *a, const struct fc_message *last)
{
	const struct fc_packet *p = a->packet;

	if (!p->length_bytes || fc_message_stop(last) != a->psn || !lap_fits(a, last->last_ns))
		return false;
	const uint32_t next = next_flag(a, last);
	const uint32_t beyond = p->line_flag - next;
	/* What is no flag that messages could have come to says nothing: it is data. */
	const bool counts = next && p->flags & FC_PACKET_LINE_FLAG && beyond < FC_PSN_LAP;

	if (!counts && a->flow->unproven_pauses < UINT16_MAX) {
		fc_touch_flow_rest(a->parser, a->flow);
		a->flow->unproven_pauses++;
	}
	return counts && beyond && fc_is_known_key(a) && fc_is_genuine(a);
}
