/* Two complete packets with the same PSN that differ: which one did the sender send? If a key has
 * several owners, or a packet was refused, they belong to different messages. The mark names the
 * other message to the extractor, which compares the bytes. */
#include "fc_qp_owner.h"

/* Whether the packet is part of message `m`, with PSNs as its owner counts them. */
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

/* Whether the owner of a->flow may have written with this memory key. Other senders do not know
 * its keys; another address does not make a packet more trustworthy. */
static bool knows_key(const struct fc_arrival *a, const struct fc_message *m, uint32_t rkey)
{
	return !(m->flags & FC_MESSAGE_RETH) || m->rkey == rkey ||
	       !fc_message_list_foreign_rkey(a->parser->flows, a->flow, rkey);
}

/* Whether a packet without an address cannot belong to this owner, whose memory keys the sending
 * owner does not know. A mirrored copy arrives before its sender is FC_COPY_PACKETS further. A
 * restarted job continues from where everything of the earlier owner is far behind. */
static bool is_over(const struct fc_arrival *a, const struct fc_flow *owner, uint64_t psn)
{
	return owner != a->flow &&
	       (owner->next_psn > psn + FC_COPY_PACKETS || a->flow->unbroken >= FC_FAR_PACKETS);
}

/* The message of this owner, other than `own`, that the packet may belong to; or NULL. Without an
 * address it may be any message with such a packet, since what `own` states may be forged. */
static struct fc_message *alternative_of(struct fc_arrival *a, struct fc_flow *owner,
					 const struct fc_message *own)
{
	const struct fc_packet *p = a->packet;
	struct fc_arrival as = *a;

	if (owner != a->flow) {
		as.flow = owner;
		as.psn = fc_unwrap(owner, p->psn);
	}
	struct fc_message *m = fc_message_list_find(a->parser->flows, owner, as.psn).at;
	if (!m || m == own || !is_at(&as, m))
		return NULL;
	if (p->flags & FC_PACKET_RETH) {
		if (!knows_key(&as, m, p->rkey))
			return NULL;
		a->mark->same_headers = 1;
	} else {
		const bool addressed = own && own->flags & FC_MESSAGE_RETH;
		const bool known = addressed && knows_key(&as, m, own->rkey);

		if (addressed && !known && is_over(a, owner, as.psn))
			return NULL;
		a->mark->same_headers = known && own->length_bytes == m->length_bytes;
	}
	return m;
}

void fc_note_alternative(struct fc_arrival *a, enum fc_verdict said)
{
	struct fc_flows *flows = a->parser->flows;
	const struct fc_message *own = fc_message_at(flows, a->mark->message);
	struct fc_message *found = NULL;

	if (said != FC_WRITE && said != FC_DOUBTFUL && said != FC_ORPHAN && said != FC_REFUSED)
		return;
	if (said == FC_DOUBTFUL)
		found = alternative_of(a, a->flow, own);
	if (a->flow->owner & FC_OWNER_SEVERAL)
		for (struct fc_flow *o = a->list; o && !found; o = fc_owner_after(flows, o))
			found = alternative_of(a, o, own);
	if (!found || !fc_is_genuine(a))
		return;
	if (found->held)
		fc_message_pool_marked(a->parser, found);
	a->mark->alternative = found->position;
}
