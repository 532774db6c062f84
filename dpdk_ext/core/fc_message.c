/* Assigns packets to messages. All packets of an RDMA write except the last carry exactly one path
 * MTU, so the PSN alone gives the position of its bytes, whatever was lost, repeated or late. */
#include "fc_next_packet.h"
#include "fc_nccl.h"

/* Path MTU that is assumed for a flow until it is known, for READs only: that of Ethernet with
 * 1500 bytes. */
#define PMTU_GUESS 1024

/* Whether the packet is older than all records. A packet after all known messages is not, even if
 * the flow was quiet until the last of them had been overwritten. */
bool fc_is_forgotten(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	return near->forgotten && !near->before && a->psn < a->flow->expected_psn;
}

/* Fills `m` from this RETH packet. */
static void describe(const struct fc_arrival *a, struct fc_message *m)
{
	const struct fc_packet *p = a->packet;

	m->flags = (uint8_t)((m->flags & ~FC_MESSAGE_INFERRED) | FC_MESSAGE_RETH);
	m->va = p->va;
	m->rkey = p->rkey;
	m->length_bytes = p->length_bytes;
	m->opcode = p->opcode;
	m->pmtu_bytes = a->flow->pmtu_bytes;
	m->head_bytes = fc_head_bytes(p);
	memcpy(m->head, a->frame + p->payload_at, m->head_bytes);
	fc_note_line_flag(m, p);
}

/* Number of packets of [first_psn, stop) that were seen, including this one. */
static uint32_t packets_seen(const struct fc_flow *flow, const struct fc_message *m)
{
	if (m->flags & FC_MESSAGE_REFUSED)
		return 0;
	return m->packets - (uint32_t)fc_psns_missing_in(flow, m->first_psn, fc_message_stop(m));
}

/* Creates the record for a RETH packet that has no record, or only an inferred one. */
static struct fc_message *start_message(struct fc_arrival *a, struct fc_neighbours *near)
{
	struct fc_message *m = near->at;

	if (m)
		fc_touch_message(a->parser, m);
	else
		m = fc_message_list_insert(a, near, a->psn, fc_packets_from_reth(a->packet));
	describe(a, m);
	m->packets_seen = packets_seen(a->flow, m);
	fc_message_list_number(a, m);
	return m;
}

/* For the last packet of a message whose start was lost: its immediate taken as the length.
 * Possible only if that length gives this packet its size, if the message then starts at a packet
 * that was not seen, and if it does not overlap the message before. Returns the length, or 0. */
static uint32_t length_if_possible(const struct fc_arrival *a, const struct fc_neighbours *near,
				   uint32_t length)
{
	const struct fc_flow *flow = a->flow;
	const uint32_t pmtu = flow->pmtu_bytes;

	if (length <= pmtu || length > FC_MESSAGE_BYTES_MAX)
		return 0;
	const uint32_t packets = fc_packets_of(length, pmtu);
	if (length - (packets - 1) * pmtu != a->packet->payload_bytes)
		return 0;
	const uint64_t start = a->psn + 1 - packets;
	if (near->before ? start < fc_message_stop(near->before)
			 : near->forgotten && start < flow->expected_psn)
		return 0;
	return flow->lost_holes || fc_psn_is_missing(flow, start) ? length : 0;
}

/* NCCL's immediate is the size in bytes, little-endian on the wire as on its hosts; other senders
 * use network order. Used only if exactly one of them is possible. */
static struct fc_message *infer_message(struct fc_arrival *a, const struct fc_neighbours *near)
{
	const struct fc_packet *p = a->packet;

	if (p->opcode != FC_RC_WRITE_LAST_IMM || !a->flow->pmtu_bytes)
		return NULL;
	const uint32_t big = length_if_possible(a, near, p->immediate);
	const uint32_t little = length_if_possible(a, near, __builtin_bswap32(p->immediate));
	if (!(big || little) || (big && little && big != little))
		return NULL;
	const uint32_t length = big ? big : little;
	const uint32_t packets = fc_packets_of(length, a->flow->pmtu_bytes);
	struct fc_message *m = fc_message_list_insert(a, near, a->psn + 1 - packets, packets);
	m->flags |= FC_MESSAGE_INFERRED;
	m->length_bytes = length;
	fc_note_line_flag(m, p);
	m->packets_seen = packets_seen(a->flow, m);
	fc_message_list_number(a, m);
	return m;
}

bool fc_fits_message(const struct fc_arrival *a, const struct fc_message *m)
{
	return fc_fits(a, m, a->packet->opcode);
}

void fc_note_duplicate(struct fc_arrival *a)
{
	a->mark->again = 1;
	fc_touch_flow_rest(a->parser, a->flow);
	a->flow->duplicate_packets++;
	a->parser->counters.duplicate_packets++;
}

static void note_seen(struct fc_arrival *a, bool again)
{
	const struct fc_packet *p = a->packet;
	struct fc_flow *flow = a->flow;

	flow->has_writes = 1;
	flow->write_packets++;
	if (FC_UNLIKELY(flow->far_packets)) {
		fc_touch_flow_rest(a->parser, flow);
		flow->far_packets = 0;
	}
	if (again)
		fc_note_duplicate(a);
	else
		flow->payload_bytes += p->payload_bytes;
	if (p->flags & FC_PACKET_IMMEDIATE)
		flow->has_immediates = 1;
}

enum fc_verdict fc_begin_owner(struct fc_arrival *a, struct fc_neighbours *near)
{
	if (!fc_is_genuine(a)) {
		fc_touch_flow_rest(a->parser, a->flow);
		a->flow->icrc_bad_frames++;
		return FC_ICRC_BAD;
	}
	struct fc_flow *flow = fc_flow_reincarnate(a);
	if (!flow)
		return FC_STALE;
	a->flow = flow;
	a->psn = fc_unwrap(flow, a->packet->psn);
	*near = (struct fc_neighbours){ 0 };
	return FC_WRITE;
}

/* Whether the packet is half a PSN range ahead: after a pause of the capture such a PSN seems far
 * behind, and nothing of its owner is in flight there. */
static bool is_half_the_psns_on(struct fc_arrival *a, const struct fc_neighbours *near)
{
	return fc_is_far_behind(a) && !near->at && a->packet->length_bytes &&
	       !fc_is_other_port(a) &&
	       !fc_message_list_foreign_rkey(a->parser->flows, a->flow, a->packet->rkey) &&
	       fc_is_genuine(a);
}

/* Messages with a key that is new to their owner give way to one with a known key. */
static enum fc_verdict withdraw_weaker(struct fc_arrival *a, struct fc_neighbours *near)
{
	struct fc_message *weaker;

	for (int dropped = 0; (weaker = fc_weaker_message(a, near)); dropped++) {
		if (dropped == FC_WITHDRAWN_MAX)
			return FC_MALFORMED;
		if (!fc_is_genuine(a)) {
			fc_touch_flow_rest(a->parser, a->flow);
			a->flow->icrc_bad_frames++;
			return FC_ICRC_BAD;
		}
		fc_message_list_withdraw(a, weaker);
		*near = fc_message_list_find(a->parser->flows, a->flow, a->psn);
	}
	return FC_WRITE;
}

/* Places a packet with an address: the start of a message, or of a new owner. */
static enum fc_verdict place_start(struct fc_arrival *a)
{
	const struct fc_packet *p = a->packet;
	struct fc_neighbours near = fc_message_list_find(a->parser->flows, a->flow, a->psn);

	if (FC_UNLIKELY(fc_is_far_behind(a)) && is_half_the_psns_on(a, &near)) {
		if (!fc_far_packets_agree(a))
			return FC_DOUBTFUL;
		a->psn += FC_PSN_COUNT;
		near = fc_message_list_find(a->parser->flows, a->flow, a->psn);
	} else if (FC_UNLIKELY(a->psn == a->flow->next_psn && near.before &&
			       a->now_ns > near.before->last_ns + FC_PAUSE_NS) &&
		   fc_psns_wrapped(a, near.before)) {
		a->psn += FC_PSN_COUNT;
		a->continues_far = true; /* consecutive flags prove it */
		near = fc_message_list_find(a->parser->flows, a->flow, a->psn);
	}
	if (FC_UNLIKELY(fc_is_new_owner(a, &near))) {
		const enum fc_verdict said = fc_begin_owner(a, &near);
		if (said != FC_WRITE)
			return said;
	}
	const enum fc_verdict cleared = withdraw_weaker(a, &near);
	if (FC_UNLIKELY(cleared != FC_WRITE))
		return cleared;
	if (FC_UNLIKELY(a->flow->owner & FC_OWNER_DOUBTED) && !near.at &&
	    a->psn < a->flow->next_psn && !fc_is_known_key(a))
		return FC_DOUBTFUL;
	if (FC_UNLIKELY(fc_is_far_ahead(a)) && !near.at && !a->continues_far &&
	    !fc_far_packets_agree(a))
		return FC_DOUBTFUL;
	if (fc_contradicts_inferred(a, &near))
		return FC_MALFORMED;
	if (p->opcode == FC_RC_WRITE_FIRST && !a->flow->pmtu_bytes)
		a->flow->pmtu_bytes = p->payload_bytes;
	if (p->opcode == FC_RC_WRITE_FIRST
		    ? p->payload_bytes != a->flow->pmtu_bytes
		    : a->flow->pmtu_bytes && p->payload_bytes > a->flow->pmtu_bytes)
		return fc_doubt_owner(a, FC_MALFORMED);
	if (p->length_bytes && a->psn >= a->flow->next_psn)
		fc_trust_owner(a);
	if (!near.at)
		a->standing = fc_standing_of(a, &near);
	const bool again = !fc_psns_see(a->parser, a->flow, a->psn, a->psn + 1);
	note_seen(a, again);
	if (near.at && near.at->flags & FC_MESSAGE_RETH)
		return fc_mark_message(a, near.at, false, p->opcode);
	/* Older than all records: its order cannot be checked. */
	if (!near.at && fc_is_forgotten(a, &near))
		return FC_STALE;
	return fc_mark_message(a, start_message(a, &near), true, p->opcode);
}

static enum fc_verdict place_rest(struct fc_arrival *a)
{
	const struct fc_packet *p = a->packet;
	struct fc_flow *flow = a->flow;
	const struct fc_neighbours near = fc_message_list_find(a->parser->flows, flow, a->psn);

	if (FC_UNLIKELY(flow->far_packets) && !near.at &&
	    (fc_is_far_ahead(a) || fc_is_far_behind(a)))
		(void)fc_far_packets_agree(a);
	if (p->opcode == FC_RC_WRITE_MIDDLE && !flow->pmtu_bytes)
		flow->pmtu_bytes = p->payload_bytes;
	if (p->opcode == FC_RC_WRITE_MIDDLE
		    ? p->payload_bytes != flow->pmtu_bytes
		    : flow->pmtu_bytes && p->payload_bytes > flow->pmtu_bytes)
		return fc_doubt_owner(a, FC_MALFORMED);
	if (near.at && !fc_fits(a, near.at, p->opcode))
		return near.at->flags & FC_MESSAGE_INFERRED ||
				       near.at->standing == FC_STANDING_UNPROVEN
			       ? FC_MALFORMED
			       : fc_doubt_owner(a, FC_MALFORMED);
	if (FC_UNLIKELY(fc_is_doubtful(a, &near)))
		return fc_doubt_owner(a, FC_DOUBTFUL);
	if (near.at && a->psn >= flow->next_psn)
		fc_trust_owner(a);
	/* Far from everything known and without an address: a later RETH will show its owner, so
	 * the flow does not follow it. */
	if (!near.at && fc_is_far_ahead(a))
		return FC_ORPHAN;
	const bool again = !fc_psns_see(a->parser, flow, a->psn, a->psn + 1);
	note_seen(a, again);
	if (near.at)
		return fc_mark_message(a, near.at, false, p->opcode);
	if (fc_is_forgotten(a, &near))
		return FC_STALE;
	struct fc_message *m = infer_message(a, &near);
	return m ? fc_mark_message(a, m, true, p->opcode) : FC_ORPHAN;
}

/* READs and atomics use the same PSNs as writes and SENDs of their queue pair. A READ request
 * takes as many PSNs as its response has packets (IB 9.7.2.2.1). */
static void note_request(struct fc_arrival *a, uint32_t packets)
{
	const struct fc_flow *flow = a->flow;

	/* A forged READ may request a long response, so it advances the PSN no further than other
	 * unproven packets. */
	if (packets > FC_PSN_FAR ||
	    (flow->next_psn && a->psn + packets > fc_own_psn(flow) + FC_PSN_FAR))
		return;
	(void)fc_psns_see(a->parser, a->flow, a->psn, a->psn + packets);
	if (a->flow->expected_psn < a->psn + packets && a->flow->expected_psn <= a->psn) {
		fc_touch_flow_rest(a->parser, a->flow);
		a->flow->expected_psn = a->psn + packets;
		a->flow->next_number = FC_NUMBER_UNKNOWN;
		a->flow->next_counted = 0;
		a->flow->run_next = 0;
	}
}

static enum fc_verdict note_ack(struct fc_arrival *a, enum fc_verdict verdict)
{
	fc_touch_flow_rest(a->parser, a->flow);
	a->flow->ack_packets++;
	a->flow->nak_packets += verdict == FC_NAK;
	a->flow->last_ack_psn = a->packet->psn;
	a->flow->last_ack_msn = a->packet->msn;
	return fc_is_fatal_nak(a->packet->syndrome) ? fc_note_refusal(a) : verdict;
}

/* A packet whose flow has no record. If it is a NAK it refuses requests of another flow, which may
 * have one. */
static enum fc_verdict note_flowless(struct fc_arrival *a, enum fc_verdict verdict)
{
	if (verdict == FC_NAK && fc_is_fatal_nak(a->packet->syndrome))
		return fc_note_refusal(a);
	return verdict == FC_WRITE ? FC_STALE : verdict;
}

static bool is_request(uint8_t opcode)
{
	return !(opcode >= FC_RC_READ_RESPONSE_FIRST && opcode <= FC_RC_ATOMIC_ACK);
}

/* Finds the flow of a write or SEND packet if its flow was silent, or has several owners. */
static void find_sender(struct fc_arrival *a)
{
	if (a->flow->owner & FC_OWNER_SILENT) {
		a->flow->owner &= (uint8_t)~FC_OWNER_SILENT;
		a->parser->flows->header->silent_flows--;
	}
	if (a->flow->owner & FC_OWNER_SEVERAL) {
		fc_find_owner(a);
		fc_touch_flow_packet(a->parser, a->flow);
	}
}

enum fc_verdict fc_assemble(struct fc_arrival *a)
{
	const struct fc_packet *p = a->packet;
	const enum fc_verdict verdict = (enum fc_verdict)p->verdict;

	if (FC_LIKELY(verdict == FC_WRITE && a->flow && !a->parser->general &&
		      !(p->flags & FC_PACKET_RETH)) &&
	    FC_LIKELY(fc_place_next(a, p->opcode)))
		return FC_WRITE;
	a->list = a->flow = fc_flow_find_or_make(a);
	if (!a->flow)
		return a->outside ? a->outside : note_flowless(a, verdict);
	const bool sends = fc_is_of_message(p);
	a->flow->last_ns = a->now_ns;
	if (FC_UNLIKELY(a->flow->owner & (FC_OWNER_SEVERAL | FC_OWNER_SILENT)) && sends)
		find_sender(a);
	a->psn = fc_unwrap(a->flow, p->psn);
	enum fc_verdict said = verdict;
	if (verdict == FC_WRITE) {
		said = p->flags & FC_PACKET_RETH ? place_start(a) : place_rest(a);
	} else if (verdict == FC_SEND) {
		said = fc_place_send(a);
	} else if (verdict == FC_ACK || verdict == FC_NAK) {
		said = note_ack(a, verdict);
	} else if (is_request(p->opcode)) {
		const uint32_t pmtu = a->flow->pmtu_bytes ? a->flow->pmtu_bytes : PMTU_GUESS;
		note_request(a, p->opcode == FC_RC_READ_REQUEST
					? fc_packets_of(p->length_bytes, pmtu)
					: 1);
	}
	a->flow->last_ns = a->now_ns;
	if (FC_UNLIKELY(said == FC_DOUBTFUL || a->flow->owner & FC_OWNER_SEVERAL) &&
	    verdict == FC_WRITE)
		fc_note_alternative(a, said);
	if (FC_UNLIKELY(a->flow->owner & FC_OWNER_SEVERAL) && said == verdict && sends)
		fc_note_owner(a, fc_message_at(a->parser->flows, a->mark->message));
	a->mark->flow = (uint32_t)(a->flow - a->parser->flows->flows);
	a->mark->psn = a->psn;
	return said;
}
