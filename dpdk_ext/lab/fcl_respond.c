/* The responder's half of a queue pair: order, duplicates, and where the bytes go. */
#include <string.h>

#include "fcl_port.h"

/* AETH syndromes, IB tables 49 and 50. */
enum { ACK_NO_CREDIT = 0x1f, NAK_SEQUENCE = 0x60, NAK_INVALID = 0x61, NAK_ACCESS = 0x62 };

static bool refuse(struct fcl_qp *qp, uint8_t syndrome)
{
	qp->refused = true;
	qp->refusal = syndrome;
	return false;
}

/* First or Only: where the message goes. */
static bool begin(struct fcl_qp *qp, const struct fcl_packet *packet)
{
	if (qp->in_message)
		return refuse(qp, NAK_INVALID);
	qp->target = NULL;
	qp->target_offset = 0;
	qp->target_left = packet->dma_length;
	if (packet->dma_length) {
		struct fcl_region *region = fcl_net_region(qp->net, packet->rkey);
		if (!region || packet->va < region->va || packet->va - region->va > region->bytes ||
		    packet->dma_length > region->bytes - (packet->va - region->va))
			return refuse(qp, NAK_ACCESS);
		qp->target = region;
		qp->target_offset = packet->va - region->va;
	}
	qp->in_message = true;
	return true;
}

/* The packet that is next in order. */
static bool take(struct fcl_qp *qp, const struct fcl_packet *packet)
{
	const uint32_t pmtu = qp->net->settings.pmtu_bytes;
	const bool last = fc_is_last(packet->opcode);
	if (fc_has_reth(packet->opcode) ? !begin(qp, packet) : !qp->in_message)
		return qp->refused ? false : refuse(qp, NAK_INVALID);
	if (last ? packet->payload_bytes != qp->target_left || packet->payload_bytes > pmtu
		 : packet->payload_bytes != pmtu || packet->payload_bytes >= qp->target_left)
		return refuse(qp, NAK_INVALID);
	if (packet->payload_bytes)
		memcpy(qp->target->memory + qp->target_offset, packet->payload,
		       packet->payload_bytes);
	qp->target_offset += packet->payload_bytes;
	qp->target_left -= packet->payload_bytes;
	if (!last)
		return true;
	qp->in_message = false;
	qp->msn = (qp->msn + 1) & FCL_PSN_MASK;
	if (fc_has_immediate(packet->opcode) &&
	    (!qp->complete || !qp->complete(qp->owner, qp, packet->immediate)))
		return refuse(qp, NAK_INVALID);
	return true;
}

void fcl_qp_respond(struct fcl_qp *qp, const struct fcl_packet *packet)
{
	const int32_t ahead = fc_psn_diff(packet->psn, qp->expected_psn);
	if (qp->refused) {
		/* The refusal may have been lost; it is given again to whoever asks again. */
		qp->ack_due |= ahead == 0;
		return;
	}
	if (ahead < 0) {
		qp->net->counters.duplicate_frames++;
		qp->ack_due = true;
		return;
	}
	if (ahead > 0) {
		if (qp->nak_sent)
			return;
		const struct fcl_packet nak = { .opcode = FC_RC_ACK,
						.dest_qp = qp->peer_number,
						.psn = qp->expected_psn,
						.syndrome = NAK_SEQUENCE,
						.msn = qp->msn };
		qp->nak_sent = fcl_net_emit(qp->net, &qp->path, &nak);
		qp->net->counters.naks_sent += qp->nak_sent;
		return;
	}
	if (!take(qp, packet)) {
		qp->ack_due = true;
		return;
	}
	qp->nak_sent = false;
	qp->expected_psn = (qp->expected_psn + 1) & FCL_PSN_MASK;
	qp->ack_due |= packet->ack_request;
}

void fcl_qp_send_ack(struct fcl_qp *qp)
{
	if (!qp->ack_due)
		return;
	const struct fcl_packet ack = {
		.opcode = FC_RC_ACK,
		.dest_qp = qp->peer_number,
		.psn = qp->refused ? qp->expected_psn : (qp->expected_psn - 1) & FCL_PSN_MASK,
		.syndrome = qp->refused ? qp->refusal : ACK_NO_CREDIT,
		.msn = qp->msn,
	};
	qp->ack_due = !fcl_net_emit(qp->net, &qp->path, &ack);
}
