/* Requests that a receiver refused: a NAK that puts its queue pair in error names the request that
 * did not reach memory; nothing after it did either. */
#include "fc_qp_owner.h"

/* A mirror may deliver an ACK before the packets that it acknowledges. */
#define EARLY_PSNS 64

static bool is_under_way(const struct fc_flow *flow, uint32_t psn24)
{
	const uint64_t psn = fc_unwrap(flow, psn24);
	const uint64_t stop =
		flow->expected_psn > flow->next_psn ? flow->expected_psn : flow->next_psn;

	return psn >= flow->first_psn && psn < stop + EARLY_PSNS;
}

static uint32_t pair_hash(const uint8_t source[16], const uint8_t destination[16])
{
	struct fc_flow_key key = { .dest_qp = 0 };

	memcpy(key.source, source, sizeof key.source);
	memcpy(key.destination, destination, sizeof key.destination);
	return (uint32_t)(fc_key_hash(&key) >> 32) & (FC_FLOWS_MAX - 1);
}

/* Index + 1 of the newest flow with this hash of hosts; 0: none. Anybody can send such NAKs:
 * searching all flows for each would block the parser. */
static uint32_t newest_between(struct fc_parser *parser, const uint8_t source[16],
			       const uint8_t destination[16])
{
	struct fc_host_pairs *pairs = &parser->host_pairs;
	const struct fc_flows *flows = parser->flows;

	for (; pairs->flows < flows->header->flows_made; pairs->flows++) {
		const struct fc_flow_key *key = &flows->flows[pairs->flows].key;
		uint32_t *newest = &pairs->newest[pair_hash(key->source, key->destination)];
		pairs->older[pairs->flows] = *newest;
		*newest = (uint32_t)pairs->flows + 1;
	}
	return pairs->newest[pair_hash(source, destination)];
}

static bool is_between(const struct fc_flow *flow, const struct fc_packet *p)
{
	return !flow->retired && flow->next_psn && flow->key.partition == p->key.partition &&
	       !memcmp(flow->key.source, p->key.destination, sizeof flow->key.source) &&
	       !memcmp(flow->key.destination, p->key.source, sizeof flow->key.source);
}

/* The flow that a NAK refuses: the other direction of its queue pair; NULL: not certain. Packets
 * name only their receiver. A queue pair uses one UDP port in both directions if its NIC does so;
 * otherwise the flow is certain only if there is just one. in_network: consider only flows that
 * may write in the NAK's network. */
static struct fc_flow *refused_flow(const struct fc_arrival *a, bool in_network)
{
	struct fc_flows *flows = a->parser->flows;
	const struct fc_packet *p = a->packet;
	struct fc_flow *of_port = NULL, *of_hosts = NULL;
	int ports = 0, hosts = 0;

	uint32_t next = newest_between(a->parser, p->key.destination, p->key.source);

	/* Two candidates suffice: then it is not certain. */
	while (next && ports < 2) {
		struct fc_flow *flow = &flows->flows[next - 1];
		next = a->parser->host_pairs.older[next - 1];
		/* Only the first owner of a list has its networks. */
		if (!is_between(flow, p) ||
		    (in_network && flow->network && !fc_network_has(flow, p->network)))
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

/* before: requests up to here were refused earlier; 0: none. */
static void refuse_known(struct fc_arrival *a, const struct fc_flow *flow, uint64_t before)
{
	struct fc_flows *flows = a->parser->flows;
	struct fc_message *m = fc_message_at(flows, flow->last_message);

	if (before) {
		const struct fc_neighbours near = fc_message_list_find(flows, flow, before);
		m = near.at ? near.at : near.before;
	}

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
		if (a->flow) {
			fc_touch_flow_rest(a->parser, a->flow);
			a->flow->icrc_bad_frames++;
		}
		return FC_ICRC_BAD;
	}
	/* A NAK may take another link than the writes that it refuses. */
	struct fc_flow *flow = refused_flow(a, true);
	if (!flow)
		flow = refused_flow(a, false);
	if (!flow) {
		a->parser->counters.unpaired_refusals++;
		return FC_NAK;
	}
	const uint64_t psn = fc_unwrap(flow, a->packet->psn);
	if (!flow->refused_psn || psn < flow->refused_psn) {
		const uint64_t before = flow->refused_psn;
		fc_touch_flow_rest(a->parser, flow);
		flow->refused_psn = psn;
		flow->refused_next = flow->next_psn;
		refuse_known(a, flow, before);
	}
	return FC_NAK;
}
