/* The requester's half of a queue pair: segments, sends within a window, goes back N. */
#include <errno.h>

#include "fcl_error.h"
#include "fcl_port.h"

/* AETH syndromes, IB table 49 and 50. */
enum { NAK_SEQUENCE = 0x60, KIND_MASK = 0xe0, KIND_ACK = 0x00, KIND_RNR = 0x20, KIND_NAK = 0x60 };

static struct fcl_work *work_at(struct fcl_qp *qp, uint32_t index)
{
	return &qp->works[index & (FCL_WORKS - 1)];
}

bool fcl_qp_idle(const struct fcl_qp *qp)
{
	return qp->first_work == qp->next_work;
}

int fcl_qp_post(struct fcl_qp *qp, const struct fcl_work *work)
{
	if (qp->next_work - qp->first_work == FCL_WORKS)
		return -EAGAIN;
	struct fcl_work *own = work_at(qp, qp->next_work);
	*own = *work;
	const uint32_t pmtu = qp->net->settings.pmtu_bytes;
	own->packets = work->bytes ? (work->bytes + pmtu - 1) / pmtu : 1;
	own->first_psn = qp->next_psn;
	qp->next_psn = (qp->next_psn + own->packets) & FCL_PSN_MASK;
	if (fcl_qp_idle(qp))
		qp->moved_ms = fcl_net_now_ms();
	qp->next_work++;
	return 0;
}

static uint8_t opcode_of(const struct fcl_work *work, uint32_t packet)
{
	const bool last = packet + 1 == work->packets;
	if (work->packets == 1)
		return work->has_immediate ? FC_RC_WRITE_ONLY_IMM : FC_RC_WRITE_ONLY;
	if (packet == 0)
		return FC_RC_WRITE_FIRST;
	if (!last)
		return FC_RC_WRITE_MIDDLE;
	return work->has_immediate ? FC_RC_WRITE_LAST_IMM : FC_RC_WRITE_LAST;
}

int fcl_qp_send(struct fcl_qp *qp, int limit, uint64_t now_ms)
{
	const uint32_t pmtu = qp->net->settings.pmtu_bytes;
	int sent = 0;
	while (sent < limit && qp->sending_work != qp->next_work &&
	       fc_psn_diff(qp->sending_psn, qp->unacked_psn) < FCL_WINDOW_PACKETS) {
		const struct fcl_work *work = work_at(qp, qp->sending_work);
		const uint32_t at = qp->sending_packet * pmtu;
		const bool last = qp->sending_packet + 1 == work->packets;
		const struct fcl_packet packet = {
			.opcode = opcode_of(work, qp->sending_packet),
			.ack_request = last || (qp->sending_psn & (FCL_ACK_EVERY - 1)) == 0,
			.dest_qp = qp->peer_number,
			.psn = qp->sending_psn,
			.va = work->va,
			.rkey = work->rkey,
			.dma_length = work->bytes,
			.immediate = work->immediate,
			.payload = work->data + at,
			.payload_bytes = last ? work->bytes - at : pmtu,
		};
		if (!fcl_net_emit(qp->net, &qp->path, &packet))
			break;
		if (qp->sending_psn == qp->unacked_psn)
			qp->moved_ms = now_ms;
		qp->sending_psn = (qp->sending_psn + 1) & FCL_PSN_MASK;
		if (fc_psn_diff(qp->sending_psn, qp->highest_psn) > 0)
			qp->highest_psn = qp->sending_psn;
		else
			qp->net->counters.retransmitted_frames++;
		sent++;
		qp->sending_packet = last ? 0 : qp->sending_packet + 1;
		qp->sending_work += last;
	}
	return sent;
}

/* Continues with the oldest packet that is not acknowledged. */
static void go_back(struct fcl_qp *qp, uint64_t now_ms)
{
	qp->sending_work = qp->first_work;
	qp->sending_psn = qp->unacked_psn;
	qp->sending_packet = 0;
	if (!fcl_qp_idle(qp))
		qp->sending_packet =
			(qp->unacked_psn - work_at(qp, qp->first_work)->first_psn) & FCL_PSN_MASK;
	qp->moved_ms = now_ms;
}

int fcl_qp_timer(struct fcl_qp *qp, uint64_t now_ms)
{
	if (qp->unacked_psn == qp->sending_psn ||
	    now_ms - qp->moved_ms < qp->net->settings.timeout_ms)
		return 0;
	qp->net->counters.timeouts++;
	if (++qp->retries > qp->net->settings.retries)
		return fcl_fail(ETIMEDOUT, "the peer at %u.%u.%u.%u did not answer %u times",
				qp->path.destination_ip[0], qp->path.destination_ip[1],
				qp->path.destination_ip[2], qp->path.destination_ip[3],
				qp->retries);
	go_back(qp, now_ms);
	return 1;
}

int fcl_qp_due_ms(const struct fcl_qp *qp, uint64_t now_ms)
{
	if (qp->unacked_psn == qp->sending_psn)
		return -1;
	const uint64_t due_ms = qp->moved_ms + qp->net->settings.timeout_ms;
	return due_ms > now_ms ? (int)(due_ms - now_ms) : 0;
}

/* Everything before `psn` arrived. */
static void advance(struct fcl_qp *qp, uint32_t psn, uint64_t now_ms)
{
	if (fc_psn_diff(psn, qp->unacked_psn) <= 0 || fc_psn_diff(psn, qp->highest_psn) > 0)
		return;
	qp->unacked_psn = psn;
	qp->moved_ms = now_ms;
	qp->retries = 0;
	while (qp->first_work != qp->next_work) {
		struct fcl_work *work = work_at(qp, qp->first_work);
		if (fc_psn_diff(psn, work->first_psn + work->packets) < 0)
			break;
		if (work->left)
			--*work->left;
		qp->first_work++;
	}
	/* A late acknowledgement may overtake what is being sent a second time. */
	if (fc_psn_diff(qp->sending_psn, psn) < 0)
		go_back(qp, now_ms);
}

int fcl_qp_acknowledged(struct fcl_qp *qp, const struct fcl_packet *packet, uint64_t now_ms)
{
	const uint8_t kind = packet->syndrome & KIND_MASK;
	if (kind != KIND_ACK && (fc_psn_diff(packet->psn, qp->unacked_psn) < 0 ||
				 fc_psn_diff(packet->psn, qp->highest_psn) >= 0))
		return 0; /* refuses what is settled, or was never sent */
	if (kind == KIND_ACK) {
		advance(qp, (packet->psn + 1) & FCL_PSN_MASK, now_ms);
		return 0;
	}
	advance(qp, packet->psn, now_ms);
	qp->net->counters.naks_received++;
	if (packet->syndrome == NAK_SEQUENCE || kind == KIND_RNR) {
		if (packet->psn == qp->unacked_psn)
			go_back(qp, now_ms);
		return 0;
	}
	return fcl_fail(EREMOTEIO, "the peer at %u.%u.%u.%u refused a write (AETH syndrome 0x%02x)",
			qp->path.destination_ip[0], qp->path.destination_ip[1],
			qp->path.destination_ip[2], qp->path.destination_ip[3], packet->syndrome);
}
