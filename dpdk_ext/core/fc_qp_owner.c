/* Owners of a queue pair: a key that returns with other memory keys, addresses or first bytes has
 * a new owner; a retransmission repeats what was sent. */
#include "fc_qp_owner.h"

bool fc_is_genuine(struct fc_arrival *a)
{
	if (a->icrc_ok || a->packet->flags & FC_PACKET_ICRC_CHECKED || !a->parser->icrc_every)
		return true;
	a->parser->counters.icrc_checked_frames++;
	a->icrc_ok = fc_icrc_right(a->frame, a->packet);
	return a->icrc_ok;
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

bool fc_far_packets_agree(struct fc_arrival *a)
{
	struct fc_flow *flow = a->flow;
	const int32_t apart = fc_psn_diff(a->packet->psn, (uint32_t)flow->far_psn);
	const bool together = flow->far_packets && apart <= FC_PSN_FAR && apart >= -FC_PSN_FAR;
	const bool addressed = a->packet->flags & FC_PACKET_RETH;

	if (!(together || addressed) || !fc_is_genuine(a))
		return false;
	fc_touch_flow_rest(a->parser, flow);
	if (!together)
		flow->far_psn = a->packet->psn;
	flow->far_packets = together ? flow->far_packets + 1 : 1;
	a->continues_far = addressed && flow->far_packets >= FC_FAR_PACKETS;
	return a->continues_far;
}

/* Whether a First or Only packet of a known message has the same content as before. */
bool fc_is_same_message(const struct fc_arrival *a, const struct fc_message *m)
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
	       fc_message_list_foreign_rkey(a->parser->flows, a->flow, a->packet->rkey);
}

bool fc_is_known_key(const struct fc_arrival *a)
{
	return a->packet->length_bytes && !foreign_rkey(a);
}

/* Whether this RETH packet contradicts a message whose length was only inferred. Packets were
 * marked with that length already, so the message stays and the packet is not placed. */
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

struct fc_message *fc_weaker_message(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	const uint64_t stop = a->psn + fc_packets_from_reth(a->packet);
	struct fc_message *m = near->at ? near->at : near->after;

	/* A SEND has no key. */
	const bool keyless = m && m->kind != FC_KIND_WRITE;

	if (!m || !(keyless || (m->standing != FC_STANDING_KNOWN && m->flags & FC_MESSAGE_RETH)))
		return NULL;
	if (m == near->at ? !keyless && fc_is_same_message(a, m) : stop <= m->first_psn)
		return NULL;
	if (!keyless && m->rkey == a->packet->rkey)
		return NULL;
	return a->flow->rkeys_ever && !fc_is_other_port(a) && fc_is_known_key(a) ? m : NULL;
}

/* Whether as many consecutive packets of this key came just before as an owner must send to be
 * trusted. */
static bool has_proved_itself(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	const struct fc_message *m = near->before;
	uint64_t start = a->psn;

	for (uint32_t hops = 0; m && hops < FC_PROOF_PACKETS; hops++) {
		if (m->rkey != a->packet->rkey || fc_message_stop(m) != start ||
		    m->packets_seen != m->packets)
			return false;
		start = m->first_psn;
		if (a->psn - start >= FC_PROOF_PACKETS)
			return true;
		m = fc_message_at(a->parser->flows, m->previous);
	}
	return false;
}

enum fc_message_standing fc_standing_of(const struct fc_arrival *a,
					const struct fc_neighbours *near)
{
	const struct fc_message *before = near->before;

	if (!a->packet->length_bytes)
		return FC_STANDING_FRESH; /* has no key */
	if (!foreign_rkey(a))
		return FC_STANDING_KNOWN;
	if (a->continues_far)
		return FC_STANDING_FRESH;
	if (a->psn != a->flow->next_psn || !before || fc_message_stop(before) != a->psn)
		return FC_STANDING_UNPROVEN;
	return before->standing == FC_STANDING_UNPROVEN && !has_proved_itself(a, near)
		       ? FC_STANDING_UNPROVEN
		       : FC_STANDING_FRESH;
}

/* Whether this RETH packet shows that the queue pair has a new owner. A go-back-N retransmission
 * repeats what was sent, so it never does. */
bool fc_is_new_owner(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	const struct fc_flow *flow = a->flow;
	const struct fc_packet *p = a->packet;

	if (fc_weaker_message(a, near))
		return false;
	if (near->at && near->at->kind != FC_KIND_WRITE)
		return true;
	if (near->at && near->at->flags & FC_MESSAGE_RETH)
		return !fc_is_same_message(a, near->at);
	/* The First of this message was lost; one from another port is not it. */
	if (near->at)
		return fc_is_other_port(a) || foreign_rkey(a);
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
	/* After a pause of the capture a packet is far ahead, and a further protocol has a key of
	 * its own; only one that lands at the beginning of the PSNs is of a new owner. */
	const bool ahead = fc_is_far_ahead(a) && p->psn < FC_PSN_FAR;
	const bool behind =
		a->psn < flow->next_psn && (a->psn < flow->first_psn || fc_is_far_behind(a) ||
					    !fc_psn_is_missing(flow, a->psn));
	return (ahead || behind || suspect) && foreign_rkey(a);
}

static enum fc_fit fit_of_start(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	const struct fc_flow *flow = a->flow;

	if (fc_is_new_owner(a, near))
		return FC_FITS_NOT;
	if (fc_weaker_message(a, near))
		return FC_FITS_LATE;
	if (fc_contradicts_inferred(a, near))
		return FC_FITS_LOOSE;
	if (near->at)
		return fc_psn_is_missing(flow, a->psn) ? FC_FITS_LATE : FC_FITS_AGAIN;
	if (fc_is_far_behind(a) || fc_is_far_ahead(a) || fc_is_other_port(a))
		return FC_FITS_LOOSE;
	if (foreign_rkey(a))
		return a->psn == flow->next_psn ? FC_FITS_FRESH : FC_FITS_LOOSE;
	if (a->psn == flow->next_psn)
		return FC_FITS_NEXT;
	return fc_psn_is_missing(flow, a->psn) ? FC_FITS_LATE : FC_FITS_AGAIN;
}

static enum fc_fit fit_of_rest(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	const struct fc_flow *flow = a->flow;
	const struct fc_packet *p = a->packet;

	if (p->opcode == FC_RC_WRITE_MIDDLE ? p->payload_bytes != flow->pmtu_bytes
					    : p->payload_bytes > flow->pmtu_bytes)
		return FC_FITS_NOT;
	if (fc_is_other_port(a) || (near->at && !fc_fits_message(a, near->at)))
		return FC_FITS_NOT;
	if (!near->at)
		return fc_is_far_behind(a) || fc_is_far_ahead(a) ? FC_FITS_NOT : FC_FITS_LOOSE;
	if (fc_is_at_rest(a, near) || fc_is_far_behind(a))
		return FC_FITS_LOOSE;
	if (a->psn == flow->next_psn)
		return FC_FITS_NEXT;
	return fc_psn_is_missing(flow, a->psn) ? FC_FITS_LATE : FC_FITS_AGAIN;
}

static enum fc_fit fit_of(struct fc_arrival *a, struct fc_flow *flow)
{
	a->flow = flow;
	a->psn = fc_unwrap(flow, a->packet->psn);
	const struct fc_neighbours near = fc_message_list_find(a->parser->flows, flow, a->psn);

	if (a->packet->verdict == FC_SEND)
		return fc_send_fit(a, &near);
	return a->packet->flags & FC_PACKET_RETH ? fit_of_start(a, &near) : fit_of_rest(a, &near);
}

/* Whether `one` is preferred to `other` for a packet with an address that fits both. The owner
 * that sent just before is more likely. Otherwise the packet goes to `other`, which is earlier in
 * the list, unless `one` is proven or `other` never was. */
static bool has_address_of(const struct fc_flow *one, enum fc_fit fit, const struct fc_flow *other,
			   enum fc_fit of_other)
{
	const bool is_new = one->unbroken && other->messages < 2;

	if (fit == FC_FITS_NEXT && of_other >= FC_FITS_LATE)
		return is_new || one->unbroken >= FC_PROOF_PACKETS;
	if (fit == FC_FITS_NEXT && of_other == FC_FITS_AGAIN)
		return is_new || one->unbroken >= 2;
	return fit > of_other || (fit == of_other && one->unbroken >= 2);
}

/* The same for a packet without an address. Next in a message of `other`, one packet of `one`
 * before it is not enough, since it may be forged. Anywhere else the last sender continues: a
 * packet in a gap of a silent owner is another's, or a repetition. */
static bool goes_on_with(const struct fc_arrival *a, const struct fc_flow *one, enum fc_fit fit,
			 const struct fc_flow *other, enum fc_fit of_other)
{
	if (fit < FC_FITS_AGAIN || of_other < FC_FITS_AGAIN)
		return fit > of_other || (fit == of_other && one->unbroken >= 2);
	const bool behind = fc_unwrap(other, a->packet->psn) < other->next_psn;

	return one->unbroken >= (behind || other->messages < 2 ? 1 : 2);
}

void fc_find_owner(struct fc_arrival *a)
{
	const bool addressed = a->packet->flags & FC_PACKET_RETH;
	struct fc_flow *best = a->flow;
	enum fc_fit of_best = fit_of(a, best);
	uint64_t most_unbroken = best->unbroken;

	for (struct fc_flow *o = best; (o = fc_owner_after(a->parser->flows, o));) {
		const enum fc_fit fit = fit_of(a, o);
		most_unbroken = o->unbroken > most_unbroken ? o->unbroken : most_unbroken;
		if (addressed ? has_address_of(o, fit, best, of_best)
			      : goes_on_with(a, o, fit, best, of_best)) {
			best = o;
			of_best = fit;
		}
	}
	a->flow = best;
	a->psn = fc_unwrap(best, a->packet->psn);
	/* A packet that may belong to another owner, which sends now, does not fill a gap. */
	a->owner_silent = !addressed && of_best <= FC_FITS_LATE && a->psn < best->next_psn &&
			  !best->unbroken && most_unbroken >= 2;
}

/* Makes a->flow the first of the owners, after it sent FC_PROOF_PACKETS while the others were
 * silent, so that packets of this key are tried here first. */
static void make_first(struct fc_arrival *a, struct fc_flow *first)
{
	struct fc_flow *before = first;

	while (before && fc_owner_after(a->parser->flows, before) != a->flow)
		before = fc_owner_after(a->parser->flows, before);
	if (before)
		fc_owner_first(a, before, a->flow);
}

/* Drops owners that were silent while the first one sent many packets. An owner with few packets
 * was forged; one that was first has ended. */
static void drop_silent(struct fc_arrival *a)
{
	struct fc_flows *flows = a->parser->flows;
	const bool ended = a->flow->unbroken >= FC_ENDED_PACKETS;
	struct fc_flow *before = a->flow;

	for (struct fc_flow *o; (o = fc_owner_after(flows, before));) {
		if (ended || o->write_packets < FC_PROOF_PACKETS)
			fc_owner_drop(a->parser, before, o);
		else
			before = o;
	}
	if (!a->flow->next_owner)
		a->flow->owner &= (uint8_t)~FC_OWNER_SEVERAL;
}

void fc_note_owner(struct fc_arrival *a, const struct fc_message *message)
{
	struct fc_flows *flows = a->parser->flows;
	struct fc_flow *first = a->list;
	const bool whole =
		message && message->packets_seen == message->packets && a->flow->unbroken;

	fc_touch_flow_rest(a->parser, a->flow);
	a->flow->unbroken++;
	a->flow->retired = 0;
	for (struct fc_flow *o = first; o; o = fc_owner_after(flows, o)) {
		if (o == a->flow || !(o->unbroken || (whole && !o->retired)))
			continue;
		fc_touch_flow_rest(a->parser, o);
		o->unbroken = 0;
		o->retired |= whole;
	}
	if (a->flow != first && a->flow->unbroken >= FC_PROOF_PACKETS && a->flow->messages >= 4)
		make_first(a, first);
	else if (a->flow == first && a->flow->unbroken % FC_SILENT_PACKETS == 0)
		drop_silent(a);
}
