/* What a receiver refused: a NAK that puts its queue pair in error names the request
 * that never reached memory; nothing after it did either. */
#include "fc_flow_ops.h"

/* An ACK can come out of a mirror before what it acknowledges. */
#define EARLY_PSNS 64

static bool is_under_way(const struct fc_flow *flow, uint32_t psn24)
{
	const uint64_t psn = fc_unwrap(flow, psn24);
	const uint64_t stop =
		flow->expected_psn > flow->next_psn ? flow->expected_psn : flow->next_psn;

	return psn >= flow->first_psn && psn < stop + EARLY_PSNS;
}

/* The other direction of the NAK's queue pair, or NULL where that is not certain. The
 * wire does not say it: a packet names its receiver only. A queue pair has one UDP port
 * both ways where its NIC keeps to that; else only the one flow there is can be meant. */
static struct fc_flow *refused_flow(const struct fc_arrival *a)
{
	struct fc_flows *flows = a->parser->flows;
	const struct fc_packet *p = a->packet;
	struct fc_flow *of_port = NULL, *of_hosts = NULL;
	int ports = 0, hosts = 0;

	for (uint64_t i = 0; i < flows->header->flows_used; i++) {
		struct fc_flow *flow = &flows->flows[i];
		if (flow->retired || !flow->next_psn ||
		    memcmp(flow->key.source, p->key.destination, sizeof flow->key.source) != 0 ||
		    memcmp(flow->key.destination, p->key.source, sizeof flow->key.source) != 0)
			continue;
		of_hosts = flow;
		hosts++;
		if (flow->udp_source_port == p->udp_source_port && is_under_way(flow, p->psn)) {
			of_port = flow;
			ports++;
		}
	}
	if (ports == 1)
		return of_port;
	return hosts == 1 && is_under_way(of_hosts, p->psn) ? of_hosts : NULL;
}

static void refuse_known(struct fc_arrival *a, const struct fc_flow *flow)
{
	struct fc_flows *flows = a->parser->flows;
	struct fc_message *m = fc_message_at(flows, flow->last_message);

	for (int hops = 0; m && hops < FC_REFUSE_MAX; hops++) {
		if (!fc_stops_beyond_refusal(flow, m))
			return;
		if (!(m->flags & FC_MESSAGE_REFUSED)) {
			fc_touch_message_packet(a->parser, m);
			m->flags |= FC_MESSAGE_REFUSED;
			m->packets_seen = 0;
			a->parser->counters.refused_messages++;
		}
		m = fc_message_at(flows, m->previous);
	}
}

enum fc_verdict fc_note_refusal(struct fc_arrival *a)
{
	if (!fc_is_genuine(a)) {
		fc_touch_flow_rest(a->parser, a->flow);
		a->flow->icrc_bad_frames++;
		return FC_ICRC_BAD;
	}
	struct fc_flow *flow = refused_flow(a);
	if (!flow) {
		a->parser->counters.unpaired_refusals++;
		return FC_NAK;
	}
	const uint64_t psn = fc_unwrap(flow, a->packet->psn);
	if (!flow->refused_psn || psn < flow->refused_psn) {
		fc_touch_flow_rest(a->parser, flow);
		flow->refused_psn = psn;
		refuse_known(a, flow);
	}
	return FC_NAK;
}
