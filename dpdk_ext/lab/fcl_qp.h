/* One reliable connection (IB chapter 9.7): what is sent stays until it is acknowledged; what comes is
 * taken in order of its PSN, and goes where its RETH says if that is registered memory. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "fcl_frame.h"
#include "fcl_net.h"

enum {
	FCL_WORKS = 1024,        /* of a QP's send queue; a power of two */
	FCL_WINDOW_PACKETS = 64, /* sent and not acknowledged */
	FCL_ACK_EVERY = 16,      /* packets between two that ask for an acknowledgement */
	FCL_PSN_MASK = 0xffffff,
};

struct fcl_region {
	struct fcl_net *net;
	uint8_t *memory;
	uint64_t bytes, va;
	uint32_t rkey;
	struct fcl_region *next;
};

/* One RDMA WRITE. */
struct fcl_work {
	const uint8_t *data;
	uint64_t va;
	uint32_t bytes, rkey, immediate;
	bool has_immediate;
	uint32_t first_psn, packets;
	uint32_t *left; /* counted down when it is acknowledged; may be NULL */
};

struct fcl_qp;
/* A message with immediate is complete; `immediate` is its four bytes, first byte highest. False:
 * nobody asked for it, and the peer is told so. */
typedef bool fcl_completion(void *owner, struct fcl_qp *qp, uint32_t immediate);

struct fcl_qp {
	struct fcl_net *net;
	struct fcl_qp *next;      /* of all */
	struct fcl_qp *same_hash; /* of the same bucket of QP numbers */
	uint32_t number, peer_number;
	bool connected;
	struct fcl_path path;
	fcl_completion *complete;
	void *owner;

	/* Requester. PSNs are of 24 bits; works [first_work, next_work) are not acknowledged. */
	struct fcl_work works[FCL_WORKS];
	uint32_t first_work, sending_work, next_work;
	uint32_t sending_packet; /* of sending_work */
	uint32_t next_psn;       /* of the next work */
	uint32_t unacked_psn, sending_psn, highest_psn;
	uint64_t moved_ms;
	uint32_t retries;

	/* Responder. */
	uint32_t expected_psn, msn;
	bool nak_sent, ack_due, refused;
	uint8_t refusal; /* AETH syndrome */
	struct fcl_region *target;
	uint64_t target_offset;
	uint32_t target_left; /* bytes the open message still brings; valid while in_message */
	bool in_message;
};

/* Queues a write. -EAGAIN: the queue is full. */
int fcl_qp_post(struct fcl_qp *qp, const struct fcl_work *work);
/* Puts at most `limit` packets on the port; returns how many. */
int fcl_qp_send(struct fcl_qp *qp, int limit, uint64_t now_ms);
/* Goes back to the oldest packet if its acknowledgement is overdue; a negative errno when that was
 * tried too often. */
int fcl_qp_timer(struct fcl_qp *qp, uint64_t now_ms);
/* Milliseconds to the next timer; -1 if nothing is outstanding. */
int fcl_qp_due_ms(const struct fcl_qp *qp, uint64_t now_ms);
/* What came from the peer. A negative errno when the peer refused something. */
int fcl_qp_acknowledged(struct fcl_qp *qp, const struct fcl_packet *packet, uint64_t now_ms);
void fcl_qp_respond(struct fcl_qp *qp, const struct fcl_packet *packet);
/* Sends the acknowledgement that is due, if one is. */
void fcl_qp_send_ack(struct fcl_qp *qp);
bool fcl_qp_idle(const struct fcl_qp *qp);
