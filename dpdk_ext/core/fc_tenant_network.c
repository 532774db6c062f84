/* Assigns packets to networks. Each key has a list of owners for each network in which it is used.
 * Network numbers change on a packet's path: routers and tunnel ends set others, access ports
 * none, mirror sessions their own. So a number that is new to a key is unknown until its first
 * write: a write that repeats what an owner sent, or continues it with that owner's memory key,
 * came on another path; any other write is of another tenant. */
#include "fc_qp_owner.h"

/* Most networks of one key; more can only be forged. */
#define NETWORKS_MAX 8
#define VLAN_BITS (0xfffull << FC_NETWORK_VLAN_SHIFT)

bool fc_network_has(const struct fc_flow *first, uint64_t network)
{
	for (int i = 0; i < FC_FLOW_NETWORKS - 1; i++)
		if (first->more_networks[i] == network)
			return true;
	return first->network == network;
}

static struct fc_flow *list_after(const struct fc_flows *flows, const struct fc_flow *first)
{
	const uint32_t next = first->next_network;

	return next && next <= FC_FLOWS_MAX ? &flows->flows[next - 1] : NULL;
}

struct fc_flow *fc_network_find(const struct fc_flows *flows, struct fc_flow *head,
				uint64_t network)
{
	if (!head->network && !head->next_network)
		return head; /* no write yet: any network */
	for (struct fc_flow *list = head; list; list = list_after(flows, list))
		if (fc_network_has(list, network))
			return list;
	return NULL;
}

/* Whether the packet identifies its owner: a write with an address. An empty write has no address
 * of its own. */
static bool is_start(const struct fc_arrival *a)
{
	const struct fc_packet *p = a->packet;

	return p->verdict == FC_WRITE && p->flags & FC_PACKET_RETH && p->length_bytes;
}

static void touch_lists(struct fc_parser *parser, struct fc_flow *flow)
{
	fc_journal(parser, flow, offsetof(struct fc_flow, last_ns));
	fc_journal(parser, flow->more_networks, sizeof flow->more_networks);
}

void fc_network_note(struct fc_arrival *a, struct fc_flow *first)
{
	const uint64_t network = a->packet->network;

	if (!is_start(a) || fc_network_has(first, network))
		return;
	touch_lists(a->parser, first);
	if (!first->network) {
		first->network = network;
		return;
	}
	/* Further networks are looked up again with every write. */
	for (int i = 0; i < FC_FLOW_NETWORKS - 1; i++)
		if (!first->more_networks[i]) {
			first->more_networks[i] = network;
			return;
		}
}

/* Whether owner `o` sent this very write, or would send it next or into one of its gaps. */
static bool goes_on(struct fc_arrival *a, struct fc_flow *o)
{
	const struct fc_packet *p = a->packet;

	a->flow = o;
	a->psn = fc_unwrap(o, p->psn);
	if (!o->messages || fc_is_other_port(a))
		return false;
	const struct fc_neighbours near = fc_message_list_find(a->parser->flows, o, a->psn);
	if (near.at && near.at->flags & FC_MESSAGE_RETH)
		return fc_is_same_message(a, near.at);
	if (near.at)
		return !fc_contradicts_inferred(a, &near);
	if (near.after && a->psn + fc_packets_from_reth(p) > near.after->first_psn)
		return false;
	return o->rkeys_ever && fc_is_known_key(a) && a->psn <= o->next_psn + FC_PSN_FAR &&
	       !fc_is_far_behind(a) && fc_psn_is_missing(o, a->psn);
}

/* The same for a packet without an address from a network that is new to the key: it must fit what
 * `o` has begun. repeats: it may also repeat what was seen. */
static bool may_be_of(struct fc_arrival *a, struct fc_flow *o, bool repeats)
{
	a->flow = o;
	a->psn = fc_unwrap(o, a->packet->psn);
	const struct fc_neighbours near = fc_message_list_find(a->parser->flows, o, a->psn);
	const bool near_by = a->psn <= o->next_psn + FC_PSN_FAR && !fc_is_far_behind(a);

	if (!o->next_psn)
		return true;
	if (fc_is_other_port(a) || !near_by || !(repeats || fc_psn_is_missing(o, a->psn)))
		return false;
	if (a->packet->verdict == FC_SEND)
		return fc_send_fit(a, &near) > FC_FITS_NOT;
	if (near.at && a->packet->flags & FC_PACKET_RETH)
		return fc_is_same_message(a, near.at);
	return !near.at || fc_fits_message(a, near.at);
}

/* The list whose owners include the sender of the packet, or NULL. */
static struct fc_flow *list_of(struct fc_arrival *a, struct fc_flow *head)
{
	const struct fc_flows *flows = a->parser->flows;
	const bool start = is_start(a);

	for (struct fc_flow *list = head; list; list = list_after(flows, list)) {
		/* while its owner is not proven, or on another link of the same network */
		const bool open = list->write_packets < FC_PROOF_PACKETS;
		const bool link = !((list->network ^ a->packet->network) & ~VLAN_BITS);
		for (struct fc_flow *o = list; o; o = fc_owner_after(flows, o))
			if (start ? goes_on(a, o) : (open || link) && may_be_of(a, o, open))
				return list;
	}
	for (struct fc_flow *list = head; list; list = list_after(flows, list))
		if (!list->network)
			return list;
	return NULL;
}

/* Removes the list with the fewest packets; false: all of them are needed. */
static bool drop_weakest(struct fc_arrival *a, struct fc_flow *head)
{
	struct fc_flow *before = NULL;

	for (struct fc_flow *list = head, *next; (next = list_after(a->parser->flows, list));
	     list = next) {
		const struct fc_flow *weakest =
			before ? list_after(a->parser->flows, before) : NULL;
		if (next->write_packets < FC_PROOF_PACKETS &&
		    (!weakest || next->write_packets <= weakest->write_packets))
			before = list;
	}
	if (!before)
		return false;
	struct fc_flow *weakest = list_after(a->parser->flows, before);
	touch_lists(a->parser, before);
	touch_lists(a->parser, weakest);
	before->next_network = weakest->next_network;
	weakest->next_network = 0;
	weakest->network = 0; /* lookups of this batch must be repeated */
	memset(weakest->more_networks, 0, sizeof weakest->more_networks);
	return true;
}

/* Creates the first owner of the key in a network that has no list yet. */
static struct fc_flow *add_list(struct fc_arrival *a, struct fc_flow *head)
{
	struct fc_flows *flows = a->parser->flows;
	struct fc_flow *last = head;
	int lists = 1;

	for (struct fc_flow *next; (next = list_after(flows, last)); last = next)
		lists++;
	if (lists == NETWORKS_MAX) {
		if (!drop_weakest(a, head)) {
			a->parser->counters.flow_table_full_packets++;
			return NULL;
		}
		for (last = head; last->next_network; last = list_after(flows, last))
			continue;
	}
	struct fc_flow *flow = fc_flow_make(a, (uint32_t)head->owners_made);
	if (!flow)
		return NULL;
	touch_lists(a->parser, last);
	fc_touch_flow_packet(a->parser, head);
	fc_touch_flow_rest(a->parser, head);
	head->owners_made++;
	last->next_network = (uint16_t)(flow - flows->flows + 1);
	flow->network = a->packet->network;
	a->parser->counters.incarnations++;
	return flow;
}

struct fc_flow *fc_network_choose(struct fc_arrival *a, struct fc_flow *head)
{
	const enum fc_verdict verdict = (enum fc_verdict)a->packet->verdict;
	struct fc_flow *list = head;

	if (fc_is_of_message(a->packet)) {
		list = list_of(a, head);
	} else if (verdict != FC_ACK && verdict != FC_NAK) {
		a->parser->counters.flowless_packets++;
		return NULL;
	}
	if (list) {
		fc_touch_flow_packet(a->parser, list);
		fc_network_note(a, list);
		return list;
	}
	if (is_start(a) && fc_is_genuine(a))
		return add_list(a, head);
	a->outside = is_start(a) ? FC_ICRC_BAD : FC_DOUBTFUL;
	return NULL;
}

void fc_network_first(struct fc_arrival *a, struct fc_flow *head, struct fc_flow *was,
		      struct fc_flow *is)
{
	struct fc_flows *flows = a->parser->flows;
	struct fc_flow *before = head;

	touch_lists(a->parser, was);
	touch_lists(a->parser, is);
	is->network = was->network;
	memcpy(is->more_networks, was->more_networks, sizeof is->more_networks);
	is->next_network = was->next_network;
	was->next_network = 0;
	was->network = 0;
	memset(was->more_networks, 0, sizeof was->more_networks);
	if (was == head)
		return;
	while (before && list_after(flows, before) != was)
		before = list_after(flows, before);
	if (!before)
		return;
	touch_lists(a->parser, before);
	before->next_network = (uint16_t)(is - flows->flows + 1);
}
