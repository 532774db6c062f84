/* Detects that the capture missed exactly as many packets as there are PSNs, or a multiple, so
 * that the next packet seems to continue the flow. That takes time, so it is possible only
 * after a long pause. The flags of LL lines then decide, since each message's flag is one more
 * than the previous one's. If nothing decides, the pause is counted and reported as an assumption.
 */
#include "fc_qp_owner.h"

/* Fastest port, in bytes per nanosecond: 1.6 Tb/s. */
#define LINE_BYTES_PER_NS 200u
/* A flow does not send more than FASTER times its average rate, pauses included, for all PSNs.
 * Applied from AVERAGE_OF packets on. */
#define FASTER 8u
#define AVERAGE_OF 4096

/* Whether all PSNs may have passed since `since_ns`. */
static bool wrap_fits(const struct fc_arrival *a, uint64_t since_ns)
{
	const struct fc_flow *flow = a->flow;

	if (!since_ns || a->now_ns <= since_ns || since_ns <= flow->first_ns ||
	    flow->write_packets < AVERAGE_OF)
		return false;
	const uint64_t pause_ns = a->now_ns - since_ns;
	if (pause_ns < FC_PAUSE_NS ||
	    pause_ns < (uint64_t)flow->pmtu_bytes * FC_PSN_COUNT / LINE_BYTES_PER_NS)
		return false;
	const unsigned __int128 packets = (unsigned __int128)flow->write_packets * pause_ns;
	return packets * FASTER >= (unsigned __int128)FC_PSN_COUNT * (since_ns - flow->first_ns);
}

/* Expected line flag of the flow's next message; 0: the flags of its last two messages are not
 * consecutive. */
static uint32_t next_flag(const struct fc_arrival *a, const struct fc_message *last)
{
	const struct fc_message *before = fc_message_at(a->parser->flows, last->previous);

	if (!before || !(last->flags & before->flags & FC_MESSAGE_LINE_FLAG) ||
	    last->number == FC_NUMBER_UNKNOWN || before->number == FC_NUMBER_UNKNOWN ||
	    last->line_flag - before->line_flag != (uint32_t)(last->number - before->number))
		return 0;
	return last->line_flag + 1;
}

bool fc_psns_wrapped(struct fc_arrival *a, const struct fc_message *last)
{
	const struct fc_packet *p = a->packet;

	if (!p->length_bytes || fc_message_stop(last) != a->psn || !wrap_fits(a, last->last_ns))
		return false;
	const uint32_t next = next_flag(a, last);
	const uint32_t beyond = p->line_flag - next;
	/* A value that messages cannot have reached is data, not a flag. */
	const bool counts = next && p->flags & FC_PACKET_LINE_FLAG && beyond < FC_PSN_COUNT;

	if (!counts && a->flow->unproven_pauses < UINT16_MAX) {
		fc_touch_flow_rest(a->parser, a->flow);
		a->flow->unproven_pauses++;
	}
	return counts && beyond && fc_is_known_key(a) && fc_is_genuine(a);
}
