/* Two packets of one PSN, both whole, that differ: who tells which one the sender sent? Where
 * the owners of a key stand beside each other, or a packet was refused, the two do not meet
 * in one message. Each is named to the extractor, which holds their bytes against each other. */
#include "fc_owners.h"

/* The PSN of the packet as the owner of message `m` counts it. */
static bool is_at(const struct fc_arrival *a, const struct fc_message *m)
{
	const struct fc_packet *p = a->packet;

	if (m->kind != FC_KIND_WRITE)
		return false;
	if (p->flags & FC_PACKET_RETH)
		return m->first_psn == a->psn && m->length_bytes == p->length_bytes &&
		       m->packets == fc_packets_from_reth(p);
	return fc_fits_message(a, m) &&
	       (fc_is_last(p->opcode) || p->payload_bytes == m->pmtu_bytes);
}

/* May the owner of a->flow have sent a write to this key of memory? A stranger does not know
 * any of them; what has another address is no less likely to be made up. */
static bool knows_key(const struct fc_arrival *a, const struct fc_message *m, uint32_t rkey)
{
	return !(m->flags & FC_MESSAGE_RETH) || m->rkey == rkey ||
	       !fc_chain_foreign_rkey(a->parser->flows, a->flow, rkey);
}

/* Can a packet without an address be no more of this owner's, of whose memory keys the owner that
 * sends knows none? A copy comes before its sender is as many packets on. One that begins anew,
 * as a job that is started again, sends on from where all of the one before lies far behind. */
static bool is_over(const struct fc_arrival *a, const struct fc_flow *owner, uint64_t psn)
{
	return owner != a->flow &&
	       (owner->next_psn > psn + FC_COPY_PACKETS || a->flow->unbroken >= FC_LEAP_PACKETS);
}

/* The message of this owner that the packet may be of, though it is `own`'s; or NULL. Without an
 * address it may be of any that has such a packet there: what `own` says of itself may be made up. */
static struct fc_message *rival_of(struct fc_arrival *a, struct fc_flow *owner,
				   const struct fc_message *own)
{
	const struct fc_packet *p = a->packet;
	struct fc_arrival as = *a;

	if (owner != a->flow) {
		as.flow = owner;
		as.psn = fc_unwrap(owner, p->psn);
	}
	struct fc_message *m = fc_chain_find(a->parser->flows, owner, as.psn).at;
	if (!m || m == own || !is_at(&as, m))
		return NULL;
	if (p->flags & FC_PACKET_RETH) {
		if (!knows_key(&as, m, p->rkey))
			return NULL;
		a->mark->alike = 1;
	} else {
		const bool addressed = own && own->flags & FC_MESSAGE_RETH;
		const bool known = addressed && knows_key(&as, m, own->rkey);

		if (addressed && !known && is_over(a, owner, as.psn))
			return NULL;
		a->mark->alike = known && own->length_bytes == m->length_bytes;
	}
	return m;
}

void fc_note_rival(struct fc_arrival *a, enum fc_verdict said)
{
	struct fc_flows *flows = a->parser->flows;
	const struct fc_message *own = fc_message_at(flows, a->mark->message);
	struct fc_message *rival = NULL;

	if (said != FC_WRITE && said != FC_DOUBTFUL && said != FC_ORPHAN && said != FC_REFUSED)
		return;
	if (said == FC_DOUBTFUL)
		rival = rival_of(a, a->flow, own);
	if (a->flow->owner & FC_OWNER_SEVERAL)
		for (struct fc_flow *o = a->list; o && !rival; o = fc_owner_after(flows, o))
			rival = rival_of(a, o, own);
	if (rival && fc_is_genuine(a))
		a->mark->rival = rival->position;
}
