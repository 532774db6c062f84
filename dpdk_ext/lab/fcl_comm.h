/* Collectives of one communicator as torch asks for them; all bytes cross the wire (fcl_net.h).
 * A node owns the port and the one thread that drives it; operations of a communicator run in order
 * of submission. This is what Python sees; flowcheck/lab/roce_backend/process_group.py is its only caller. */
#pragma once

#include "fcl_net.h"

struct fcl_node;
struct fcl_comm;

enum fcl_kind {
	FCL_ALL_REDUCE,
	FCL_BROADCAST,
	FCL_ALL_GATHER,
	FCL_REDUCE_SCATTER,
	FCL_SEND,
	FCL_RECV,
	FCL_ALL_GATHER_V, /* a broadcast of each rank, grouped: NCCL fuses them from 2.29 on */
};
enum fcl_type {
	FCL_INT8,
	FCL_UINT8,
	FCL_INT32,
	FCL_INT64,
	FCL_FLOAT16,
	FCL_BFLOAT16,
	FCL_FLOAT32,
	FCL_FLOAT64
};
enum fcl_reduction { FCL_SUM, FCL_AVG, FCL_MIN, FCL_MAX, FCL_PROD };
enum { FCL_MOST_BRANCHES = 6 };
enum fcl_protocol { FCL_LL, FCL_LL128, FCL_SIMPLE, FCL_ANY_PROTOCOL };

struct fcl_comm_settings {
	uint32_t rank, ranks;
	uint32_t channels;     /* of the communicator; an operation may use fewer */
	uint32_t protocol;     /* enum fcl_protocol; FCL_ANY_PROTOCOL: by size */
	uint32_t buffer_bytes; /* NCCL_BUFFSIZE; 0: default */
	uint64_t tree_below;   /* all-reduces of fewer bytes go by trees, but averages */
};

struct fcl_operation {
	uint32_t kind, type, reduction;
	uint32_t peer;     /* root of a broadcast, peer of send and recv */
	uint64_t count;    /* elements: of the tensor; per rank for all_gather and reduce_scatter */
	const void *input; /* may equal output */
	void *output;
};

/* What was done, for truth files. */
struct fcl_outcome {
	uint32_t protocol, channels;
	uint64_t messages;
};

int fcl_node_open(const struct fcl_net_settings *settings, struct fcl_node **node);
void fcl_node_close(struct fcl_node *node);
void fcl_node_read(struct fcl_node *node, struct fcl_net_counters *out);

/* Connections are made lazily per peer as NCCL does; handles are exchanged by the caller:
 * fcl_comm_open fills `handles` (ring: 2 per channel: recv-from-previous, send-to-next), the caller swaps
 * them through torch's store, then fcl_comm_connect takes the previous rank's send handles and the next
 * rank's recv handles. Point-to-point connections are made by fcl_comm_peer_*, the same way. */
int fcl_comm_open(struct fcl_node *node, const struct fcl_comm_settings *settings,
		  struct fcl_comm **comm);
uint32_t fcl_comm_handles_bytes(const struct fcl_comm *comm);
int fcl_comm_handles(struct fcl_comm *comm, uint8_t *to_previous, uint8_t *to_next);
int fcl_comm_connect(struct fcl_comm *comm, const uint8_t *from_previous, const uint8_t *from_next);
int fcl_comm_peer_handles(struct fcl_comm *comm, uint32_t peer, uint8_t *handles);
int fcl_comm_peer_connect(struct fcl_comm *comm, uint32_t peer, const uint8_t *handles);
/* The same for what trees have and the ring has not: the ranks, FCL_MOST_BRANCHES at most; their count. */
uint32_t fcl_comm_branches(const struct fcl_comm *comm, uint32_t *ranks);
int fcl_comm_branch_handles(struct fcl_comm *comm, uint32_t peer, uint8_t *handles);
int fcl_comm_branch_connect(struct fcl_comm *comm, uint32_t peer, const uint8_t *handles);
void fcl_comm_close(struct fcl_comm *comm);

/* What goes to a peer and what comes from it are queues of their own: operations run in order of submission
 * within the collectives, within the sends to one peer and within the receives from one peer.
 * `handles` of a peer are twice fcl_comm_handles_bytes: its sending halves, then its receiving halves. */

/* Queues an operation; *ticket counts operations of the communicator from 1. */
int fcl_submit(struct fcl_comm *comm, const struct fcl_operation *operation, uint64_t *ticket);
/* Blocks without the GIL until `ticket` is done; -ETIMEDOUT, or the errno of a dead connection. Each ticket
 * is waited for once. When it returns, nothing reads or writes the operation's memory any more: a time-out
 * ends the communicator and everything queued on it. */
int fcl_wait(struct fcl_comm *comm, uint64_t ticket, int timeout_ms, struct fcl_outcome *outcome);
/* Ends everything queued with -ECANCELED and `sentence`; wakes those who wait. Any thread, and before
 * fcl_comm_close, which nobody may be waiting on any more and which gives what was sent up to a
 * second to be acknowledged. */
void fcl_comm_abort(struct fcl_comm *comm, const char *sentence);
