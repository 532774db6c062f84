/* Whose queue pair is it? A key that comes back with other memory keys, addresses
 * or first bytes belongs to somebody new; a retransmission repeats what was sent. */
#include "fc_flow_ops.h"

bool fc_is_genuine(struct fc_arrival *a)
{
	if (a->summed || a->packet->flags & FC_PACKET_ICRC_CHECKED || !a->parser->icrc_every)
		return true;
	a->parser->counters.icrc_checked_frames++;
	a->summed = fc_icrc_right(a->frame, a->packet);
	return a->summed;
}

enum fc_verdict fc_doubt_owner(struct fc_arrival *a, enum fc_verdict verdict)
{
	if (a->flow->owner & FC_OWNER_DOUBTED)
		return verdict;
	if (!fc_is_genuine(a)) {
		fc_touch_flow_rest(a->parser, a->flow);
		a->flow->icrc_bad_frames++;
		return FC_ICRC_BAD;
	}
	a->flow->owner |= FC_OWNER_DOUBTED;
	return verdict;
}

/* The First or Only packet of a message seen before says what that one said. */
static bool same_message(const struct fc_arrival *a, const struct fc_message *m)
{
	const struct fc_packet *p = a->packet;

	return m->first_psn == a->psn && m->rkey == p->rkey && m->va == p->va &&
	       m->length_bytes == p->length_bytes && m->packets == fc_packets_from_reth(p) &&
	       m->head_bytes == fc_head_bytes(p) &&
	       !memcmp(m->head, a->frame + p->payload_at, m->head_bytes);
}

/* An empty write has no key of its own (NCCL: address and key 0). */
static bool foreign_rkey(const struct fc_arrival *a)
{
	return a->packet->length_bytes &&
	       fc_chain_foreign_rkey(a->parser->flows, a->flow, a->packet->rkey);
}

/* Does this RETH packet contradict a message whose length was only inferred? What
 * was marked by that length cannot be moved, so the packet has to give way. */
bool fc_contradicts_inferred(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	const struct fc_packet *p = a->packet;

	if (near->at)
		return !(near->at->flags & FC_MESSAGE_RETH) &&
		       (near->at->first_psn != a->psn ||
			near->at->length_bytes != p->length_bytes ||
			near->at->packets != fc_packets_from_reth(p));
	return near->after && a->psn + fc_packets_from_reth(p) > near->after->first_psn;
}

/* Does this RETH packet say that the queue pair belongs to somebody new? A
 * go-back-N retransmission repeats what was sent, so it never does. */
bool fc_is_new_owner(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	const struct fc_flow *flow = a->flow;
	const struct fc_packet *p = a->packet;

	if (near->at && near->at->kind != FC_KIND_WRITE)
		return true;
	if (near->at && near->at->flags & FC_MESSAGE_RETH)
		return !same_message(a, near->at);
	/* Its own First was lost; one from another port is not that one. */
	if (near->at)
		return fc_is_other_port(a) || (fc_contradicts_inferred(a, near) && foreign_rkey(a));
	if (near->after && (near->after->flags & FC_MESSAGE_RETH || near->after->kind) &&
	    a->psn + fc_packets_from_reth(p) > near->after->first_psn)
		return true;
	if (p->opcode == FC_RC_WRITE_FIRST && flow->pmtu_bytes &&
	    p->payload_bytes != flow->pmtu_bytes)
		return foreign_rkey(a);
	if (flow->next_psn == 0)
		return false;
	const bool suspect = flow->owner & FC_OWNER_DOUBTED || fc_is_other_port(a);
	if (a->psn == flow->next_psn)
		return FC_UNLIKELY(suspect) && foreign_rkey(a);
	/* A jump ahead is what a pause of the capture looks like, and the next protocol
	 * has a key of its own; only one that lands at a fresh start is somebody new. */
	const bool ahead = a->psn > flow->next_psn + FC_PSN_FAR &&
			   a->psn > flow->expected_psn + FC_PSN_FAR && p->psn < FC_PSN_FAR;
	const bool behind = a->psn < flow->next_psn &&
			    (a->psn < flow->first_psn || a->psn + FC_PSN_FAR < flow->next_psn ||
			     !fc_holes_missing(flow, a->psn));
	return (ahead || behind || suspect) && foreign_rkey(a);
}
