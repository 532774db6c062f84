/* The packet that nearly every one is: the next one of its flow's newest message. Inline, since
 * all that is asked of it takes less time than two calls. Not read by cffi. */
#ifndef FC_NEXT_PACKET_H
#define FC_NEXT_PACKET_H

#include "fc_qp_owner.h"

static inline void fc_note_line_flag(struct fc_message *m, const struct fc_packet *p)
{
	if (p->flags & FC_PACKET_LINE_FLAG && !(m->flags & FC_MESSAGE_LINE_FLAG)) {
		m->line_flag = p->line_flag;
		m->flags |= FC_MESSAGE_LINE_FLAG;
	}
}

/* Whether a packet without RETH is what message `m` has at this PSN. opcode: the packet's. */
static inline bool fc_fits(const struct fc_arrival *a, const struct fc_message *m, uint8_t opcode)
{
	const uint64_t nth = a->psn - m->first_psn;
	const uint64_t offset = nth * m->pmtu_bytes;
	const bool last = nth == m->packets - 1;

	if (m->kind != FC_KIND_WRITE || nth == 0 || last != fc_is_last(opcode))
		return false;
	return !last || offset + a->packet->payload_bytes == m->length_bytes;
}

/* Marks the packet as one of `m`, and has `m` know of it. counted: packets_seen has it already.
 * opcode: the packet's. */
static inline enum fc_verdict fc_mark_message(const struct fc_arrival *a, struct fc_message *m,
					      bool counted, uint8_t opcode)
{
	const struct fc_packet *p = a->packet;

	fc_touch_message_packet(a->parser, m);
	if (FC_UNLIKELY(m->held))
		fc_message_pool_marked(a->parser, m);
	a->mark->message = m->position;
	a->mark->offset_bytes = (uint32_t)(a->psn - m->first_psn) * m->pmtu_bytes;
	if (FC_UNLIKELY(m->flags & FC_MESSAGE_REFUSED))
		return FC_REFUSED;
	if (!counted && !a->mark->again)
		m->packets_seen++;
	if (m->standing != FC_STANDING_UNPROVEN && a->psn >= a->flow->proven_psn)
		a->flow->proven_psn = a->psn + 1;
	m->last_ns = a->now_ns;
	fc_note_line_flag(m, p);
	if (fc_is_last(opcode)) {
		m->flags |= FC_MESSAGE_LAST;
		if (p->flags & FC_PACKET_IMMEDIATE) {
			m->flags |= FC_MESSAGE_IMMEDIATE;
			m->immediate = p->immediate;
		}
	}
	return FC_WRITE;
}

/* The newest message of a->flow if this packet is its next one, in order, from the flow's only
 * owner, and nothing about either is in question; else NULL. */
static inline struct fc_message *fc_message_that_goes_on(const struct fc_arrival *a, uint8_t opcode)
{
	const struct fc_packet *p = a->packet;
	const struct fc_flow *flow = a->flow;

	if (flow->owner & ~FC_OWNER_PORTS || fc_is_other_port(a) || flow->network != p->network ||
	    flow->far_packets || !flow->next_psn || p->psn != (flow->next_psn & 0xffffff) ||
	    a->psn + FC_PSN_FAR < flow->proven_psn)
		return NULL;
	if (opcode == FC_RC_WRITE_MIDDLE ? p->payload_bytes != flow->pmtu_bytes
					 : p->payload_bytes > flow->pmtu_bytes)
		return NULL;
	struct fc_message *m = fc_message_at(a->parser->flows, flow->last_message);
	if (!m || m->held || m->flags & FC_MESSAGE_REFUSED || a->psn - m->first_psn >= m->packets ||
	    !fc_fits(a, m, opcode) || a->now_ns > m->last_ns + FC_RESTED_NS)
		return NULL;
	return m;
}

/* Takes the packet as place_rest() of fc_message.c would, without what that asks of others. opcode:
 * the packet's, a write without RETH, of which a caller may know that it is a Middle. False: it is
 * another packet, and nothing but its mark was changed. */
static inline bool fc_place_next(struct fc_arrival *a, uint8_t opcode)
{
	const struct fc_packet *p = a->packet;
	struct fc_flow *flow = a->flow;

	a->psn = flow->next_psn;
	struct fc_message *m = fc_message_that_goes_on(a, opcode);
	if (!m)
		return false;
	fc_touch_flow_packet(a->parser, flow);
	flow->last_ns = a->now_ns;
	flow->next_psn = a->psn + 1;
	flow->has_writes = 1;
	flow->write_packets++;
	flow->payload_bytes += p->payload_bytes;
	if (fc_has_immediate(opcode))
		flow->has_immediates = 1;
	(void)fc_mark_message(a, m, false, opcode);
	a->mark->flow = (uint32_t)(flow - a->parser->flows->flows);
	a->mark->psn = a->psn;
	return true;
}

#endif
