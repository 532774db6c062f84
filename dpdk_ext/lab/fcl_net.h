/* What a collective needs of the network, cut as NCCL cuts it (ncclNet: src/include/plugin/nccl_net.h):
 * connections are made by exchanged handles; the receiver posts receives, each of which writes one
 * clear-to-send into the sender's memory; the sender's isend is refused until one is there.
 * Every call is made by the one thread that drives the node; nothing here blocks but fcl_net_wait. */
#pragma once

#include <stdint.h>

struct fcl_net;       /* one emulated RoCE port */
struct fcl_send_comm; /* data goes out, clear-to-send comes in */
struct fcl_recv_comm; /* data comes in, clear-to-send goes out */
struct fcl_region;    /* registered memory: a VA range as it appears in RETH, with its rkey */

enum { FCL_HANDLE_BYTES = 128, FCL_INTERFACE_BYTES = 16 };

/* All integers in host order. */
struct fcl_net_settings {
	char interface[FCL_INTERFACE_BYTES]; /* kernel interface the frames leave by */
	uint32_t pmtu_bytes;                 /* 256, 512, 1024, 2048 or 4096 */
	uint32_t nccl_version; /* 21900 for 2.19.0: layouts of clear-to-send and immediates */
	uint32_t qps_per_connection;
	uint32_t split_data; /* 1: a message is split over the QPs; 0: whole messages take turns */
	uint32_t adaptive; /* 1: large messages as plain writes and an empty write with immediate */
	uint32_t random_qpn;    /* 1: QP numbers in random order instead of ascending */
	uint32_t traffic_class; /* of the IP header */
	uint32_t timeout_ms;    /* retransmission timer */
	uint32_t retries;       /* timeouts in a row after which a connection is dead */
	double loss;            /* probability that a frame is dropped before the wire */
	double reorder;         /* probability that a frame leaves after the next one */
	uint64_t seed;
};

struct fcl_net_counters {
	uint64_t tx_frames, tx_bytes, rx_frames, rx_bytes, retransmitted_frames, timeouts,
		naks_sent, naks_received, duplicate_frames, icrc_bad_frames, dropped_frames,
		foreign_frames;
};

/* Each returns 0 or a negative errno; fcl_error() has the sentence, per thread. */
const char *fcl_error(void);
int fcl_net_open(const struct fcl_net_settings *settings, struct fcl_net **net);
void fcl_net_close(struct fcl_net *net);
void fcl_net_read(const struct fcl_net *net, struct fcl_net_counters *out);

/* Memory that peers write into. `va` is what RETH shows; it need not be the process's own address. */
int fcl_region_open(struct fcl_net *net, void *memory, uint64_t bytes, uint64_t va,
		    struct fcl_region **region);
void fcl_region_close(struct fcl_region *region);

/* Two-way handshake by handles of FCL_HANDLE_BYTES: each side makes its half, they swap handles by any
 * out-of-band way, each side connects. `sender_rank` is the tag of clear-to-send entries. */
int fcl_send_open(struct fcl_net *net, uint8_t handle[FCL_HANDLE_BYTES],
		  struct fcl_send_comm **comm);
int fcl_recv_open(struct fcl_net *net, uint32_t sender_rank, uint8_t handle[FCL_HANDLE_BYTES],
		  struct fcl_recv_comm **comm);
int fcl_send_connect(struct fcl_send_comm *comm, const uint8_t peer[FCL_HANDLE_BYTES]);
int fcl_recv_connect(struct fcl_recv_comm *comm, const uint8_t peer[FCL_HANDLE_BYTES]);
void fcl_send_close(struct fcl_send_comm *comm);
void fcl_recv_close(struct fcl_recv_comm *comm);

/* Posts one receive of at most `capacity_bytes` at `offset_bytes` of the region and writes its
 * clear-to-send. -EAGAIN: too many outstanding. *ticket counts receives of this comm from 0. */
int fcl_irecv(struct fcl_recv_comm *comm, struct fcl_region *region, uint64_t offset_bytes,
	      uint32_t capacity_bytes, uint64_t *ticket);
/* 1: receive `ticket` is complete and *bytes says how much came (may be 0); 0: not yet. */
int fcl_recv_test(struct fcl_recv_comm *comm, uint64_t ticket, uint32_t *bytes);

/* Sends one message into the oldest unused clear-to-send. -EAGAIN: none is there yet. The bytes must
 * stay untouched until fcl_send_test says 1 (acknowledged by the receiver). */
int fcl_isend(struct fcl_send_comm *comm, const void *data, uint32_t bytes, uint64_t *ticket);
int fcl_send_test(struct fcl_send_comm *comm, uint64_t ticket);

/* Takes in what came, sends ACKs and what timers ask for; returns how much it did, or a negative
 * errno when a connection died (the sentence names the peer). */
int fcl_net_progress(struct fcl_net *net);
/* Blocks until a frame comes, a timer is due, `wake_fd` is readable or `limit_ms` passed. */
int fcl_net_wait(struct fcl_net *net, int wake_fd, int limit_ms);
