/* Assigns packets to SENDs. No RETH gives their length, so a record holds packets that are
 * adjacent without a gap; only then no start or end was lost in between. Adjacent runs are merged.
 */
#include "fc_qp_owner.h"

static bool is_start(const struct fc_arrival *a)
{
	return fc_send_starts(a->packet->opcode);
}

static bool is_end(const struct fc_arrival *a)
{
	return fc_send_ends(a->packet->opcode);
}

/* IB 9.7.4.1: First and Middle carry the path MTU, the others at most that. */
static bool size_fits(const struct fc_arrival *a)
{
	const uint32_t pmtu = a->flow->pmtu_bytes, bytes = a->packet->payload_bytes;

	return !pmtu || (is_end(a) ? bytes <= pmtu : bytes == pmtu);
}

/* Whether a packet that was seen before has the same content as then. */
static bool same_packet(const struct fc_arrival *a, const struct fc_message *m)
{
	const bool first = m->kind == FC_KIND_SEND && a->psn == m->first_psn;
	const bool last = m->flags & FC_MESSAGE_LAST && a->psn + 1 == fc_message_stop(m);

	if (m->kind == FC_KIND_WRITE || is_start(a) != first || is_end(a) != last)
		return false;
	if (first && (m->head_bytes != fc_head_bytes(a->packet) ||
		      memcmp(m->head, a->frame + a->packet->payload_at, m->head_bytes) != 0))
		return false;
	return !last ||
	       m->length_bytes - (m->packets - 1) * m->pmtu_bytes == a->packet->payload_bytes;
}

/* The run that ends just before this packet, and the one that starts just after it. */
static struct fc_message *left_of(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	struct fc_message *m = near->before;

	return m && fc_message_stop(m) == a->psn ? m : NULL;
}

static struct fc_message *right_of(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	struct fc_message *m = near->after;

	return m && m->first_psn == a->psn + 1 ? m : NULL;
}

static bool is_open(const struct fc_message *m)
{
	return m->kind != FC_KIND_WRITE && !(m->flags & FC_MESSAGE_LAST);
}

/* Whether a start follows an end and nothing else does, and the message is not longer than
 * allowed. */
static bool agrees(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	const struct fc_message *left = left_of(a, near), *right = right_of(a, near);
	uint64_t bytes = a->packet->payload_bytes;

	if (left && is_open(left) == is_start(a))
		return false;
	if (right && (right->kind == FC_KIND_SEND_PART) == is_end(a))
		return false;
	bytes += left && is_open(left) ? left->length_bytes : 0;
	bytes += right && right->kind == FC_KIND_SEND_PART ? right->length_bytes : 0;
	return bytes <= FC_MESSAGE_BYTES_MAX;
}

/* Adds the packet to a run, merged with the run after it, or to a new one. */
static struct fc_message *join(struct fc_arrival *a, const struct fc_neighbours *near)
{
	struct fc_message *left = is_start(a) ? NULL : left_of(a, near);
	struct fc_message *right = is_end(a) ? NULL : right_of(a, near);
	struct fc_message *m = left ? left : right;

	if (!m) {
		m = fc_message_list_insert(a, near, a->psn, 1);
		m->kind = FC_KIND_SEND_PART;
		m->length_bytes = a->packet->payload_bytes;
		return m;
	}
	fc_touch_message(a->parser, m);
	m->first_psn -= m == right;
	m->packets++;
	m->length_bytes += a->packet->payload_bytes;
	if (left && right) {
		m->packets += right->packets;
		m->length_bytes += right->length_bytes;
		m->flags |= right->flags & (FC_MESSAGE_LAST | FC_MESSAGE_IMMEDIATE);
		m->immediate = right->immediate;
		fc_message_list_remove(a, right);
	}
	return m;
}

static void note_ends(const struct fc_arrival *a, struct fc_message *m)
{
	const struct fc_packet *p = a->packet;

	if (is_start(a)) {
		m->kind = FC_KIND_SEND;
		m->opcode = p->opcode;
		m->head_bytes = fc_head_bytes(p);
		memcpy(m->head, a->frame + p->payload_at, m->head_bytes);
	}
	if (is_end(a)) {
		m->flags |= FC_MESSAGE_LAST;
		if (p->flags & FC_PACKET_IMMEDIATE) {
			m->flags |= FC_MESSAGE_IMMEDIATE;
			m->immediate = p->immediate;
		}
	}
}

/* SENDs end the count of message numbers: only writes are counted, and NCCL does not mix both. */
static void note_frontier(struct fc_arrival *a, const struct fc_message *m)
{
	struct fc_flow *flow = a->flow;

	if (fc_message_stop(m) < flow->expected_psn)
		return;
	fc_touch_flow_rest(a->parser, flow);
	flow->expected_psn = fc_message_stop(m);
	flow->next_number = FC_NUMBER_UNKNOWN;
	flow->next_counted = 0;
	flow->run_next = 0;
}

static enum fc_verdict mark_send(struct fc_arrival *a, const struct fc_message *m)
{
	if (m->kind == FC_KIND_SEND) {
		a->mark->message = m->position;
		a->mark->offset_bytes = (uint32_t)(a->psn - m->first_psn) * m->pmtu_bytes;
	}
	return m->flags & FC_MESSAGE_REFUSED ? FC_REFUSED : FC_SEND;
}

static enum fc_verdict place(struct fc_arrival *a, const struct fc_neighbours *near)
{
	if (!a->flow->pmtu_bytes && !is_end(a))
		a->flow->pmtu_bytes = a->packet->payload_bytes;
	a->flow->has_sends = 1;
	(void)fc_psns_see(a->parser, a->flow, a->psn, a->psn + 1);
	struct fc_message *m = join(a, near);
	note_ends(a, m);
	m->last_ns = a->now_ns;
	m->pmtu_bytes = a->flow->pmtu_bytes;
	if (!(m->flags & FC_MESSAGE_REFUSED) && fc_stops_beyond_refusal(a->flow, m)) {
		m->flags |= FC_MESSAGE_REFUSED;
		a->parser->counters.refused_messages++;
	}
	const bool whole = m->kind == FC_KIND_SEND && m->flags & FC_MESSAGE_LAST;
	m->packets_seen = whole && !(m->flags & FC_MESSAGE_REFUSED) ? m->packets : 0;
	note_frontier(a, m);
	return mark_send(a, m);
}

/* Whether a start is at a place where this owner sent something else. */
static bool is_new_owner(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	return is_start(a) && near->at && !(near->at->flags & FC_MESSAGE_INFERRED) &&
	       !same_packet(a, near->at);
}

enum fc_fit fc_send_fit(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	const struct fc_message *left = left_of(a, near);

	if (near->at && near->at->flags & FC_MESSAGE_INFERRED)
		return FC_FITS_LOOSE;
	if (!size_fits(a) || fc_is_other_port(a) || fc_is_far_behind(a) ||
	    (near->at ? !same_packet(a, near->at) : !agrees(a, near)))
		return FC_FITS_NOT;
	if (near->at)
		return FC_FITS_AGAIN;
	if (left && is_open(left))
		return a->psn == a->flow->next_psn ? FC_FITS_NEXT : FC_FITS_LATE;
	if (!is_start(a) || a->psn != a->flow->next_psn)
		return FC_FITS_LOOSE;
	return a->flow->has_sends ? FC_FITS_NEXT : FC_FITS_FRESH;
}

enum fc_verdict fc_place_send(struct fc_arrival *a)
{
	struct fc_neighbours near = fc_message_list_find(a->parser->flows, a->flow, a->psn);
	const bool doubted = a->flow->owner & FC_OWNER_DOUBTED;

	/* A start at the place of something else, or a second sign far behind: a new owner. */
	if (is_new_owner(a, &near) || (is_start(a) && doubted && fc_is_far_behind(a))) {
		const enum fc_verdict said = fc_begin_owner(a, &near);
		if (said != FC_WRITE)
			return said;
	}
	if (near.at && near.at->flags & FC_MESSAGE_INFERRED)
		return FC_MALFORMED;
	if (!size_fits(a) || (near.at ? !same_packet(a, near.at) : !agrees(a, &near)))
		return fc_doubt_owner(a, FC_MALFORMED);
	if (is_start(a) && a->psn >= a->flow->next_psn)
		a->flow->owner &= (uint8_t)~FC_OWNER_DOUBTED;
	if (fc_is_doubtful(a, &near))
		return fc_doubt_owner(a, FC_DOUBTFUL);
	if (near.at) {
		fc_note_duplicate(a);
		fc_touch_message_packet(a->parser, near.at);
		near.at->last_ns = a->now_ns;
		return mark_send(a, near.at);
	}
	if (fc_is_far_ahead(a))
		return FC_SEND;
	return fc_is_forgotten(a, &near) ? FC_STALE : place(a, &near);
}
