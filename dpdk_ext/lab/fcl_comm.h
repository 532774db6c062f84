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
enum fcl_algorithm { FCL_RING, FCL_TREE, FCL_NVLS_TREE, FCL_ALGORITHMS };
enum { FCL_MOST_GPUS = 16 }; /* of a host, where there are NVLS trees */
enum fcl_protocol { FCL_LL, FCL_LL128, FCL_SIMPLE, FCL_ANY_PROTOCOL };

struct fcl_comm_settings {
	uint32_t rank, ranks;
	uint32_t channels;     /* of the communicator; an operation may use fewer */
	uint32_t protocol;     /* enum fcl_protocol; FCL_ANY_PROTOCOL: by size */
	uint32_t buffer_bytes; /* NCCL_BUFFSIZE; 0: default */
	uint64_t tree_below;   /* all-reduces of fewer bytes go by trees, but averages */
	/* Where ranks are: copied; NULL: a host each, rings in the order of ranks. */
	const uint32_t *orders; /* [channel][ranks]: the channel's ring, from rank 0 on */
	const uint32_t *hosts;  /* [ranks]: the number of its host, from 0 */
	const uint32_t
		*chains; /* [channel][ranks]: each host's in a row, from the one that is in the
				   tree over hosts on; NULL: no trees but where each has a host */
	/* Channels with the first of two trees over hosts of several ranks; as many have the second one
	   then, and so on. 0: half of all. */
	uint32_t found;
	/* NVLS trees: all-reduces of so many bytes and more, where NCCL can sum them so. */
	uint64_t nvls_from;
	uint32_t heads;             /* of each host; 0: there are no such trees */
	const uint32_t *head_ranks; /* [host][heads] */
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
	uint32_t algorithm, protocol, channels;
	uint64_t messages;
};

int fcl_node_open(const struct fcl_net_settings *settings, struct fcl_node **node);
void fcl_node_close(struct fcl_node *node);
void fcl_node_read(struct fcl_node *node, struct fcl_net_counters *out);

int fcl_comm_open(struct fcl_node *node, const struct fcl_comm_settings *settings,
		  struct fcl_comm **comm);
/* The algorithm that an operation, not one of a peer, will take: enum fcl_algorithm; negative: none, as
 * nothing is to be moved. */
int fcl_comm_algorithm(const struct fcl_comm *comm, const struct fcl_operation *operation);
/* Whether some operation may take an algorithm. */
int fcl_comm_uses(const struct fcl_comm *comm, uint32_t algorithm);

/* Connections are made per algorithm, as NCCL does, and kept for all that use them; handles are exchanged by
 * the caller, through torch's store. fcl_comm_open_links opens what is not open yet and writes the ranks at
 * the other ends into `ranks` (room for all of the communicator); it returns how many those are. With each of
 * them fcl_comm_link_bytes of handles are swapped. */
int fcl_comm_open_links(struct fcl_comm *comm, uint32_t algorithm, uint32_t *ranks);
uint32_t fcl_comm_link_bytes(const struct fcl_comm *comm);
int fcl_comm_link_handles(struct fcl_comm *comm, uint32_t peer, uint8_t *handles);
int fcl_comm_link_connect(struct fcl_comm *comm, uint32_t algorithm, uint32_t peer,
			  const uint8_t *handles);

/* The same for send and recv, of twice fcl_comm_handles_bytes: the sending halves, then the receiving
 * halves. */
uint32_t fcl_comm_handles_bytes(const struct fcl_comm *comm);
int fcl_comm_peer_handles(struct fcl_comm *comm, uint32_t peer, uint8_t *handles);
int fcl_comm_peer_connect(struct fcl_comm *comm, uint32_t peer, const uint8_t *handles);
void fcl_comm_close(struct fcl_comm *comm);

/* What goes to a peer and what comes from it are queues of their own: operations run in order of submission
 * within the collectives, within the sends to one peer and within the receives from one peer. */

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
