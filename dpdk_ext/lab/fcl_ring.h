/* The two ends of a connection as a kernel sees them, and the proxies behind them: a FIFO of 8 steps with
 * one step counter for all protocols. The sending end is filled by a kernel and emptied into the
 * network as clear-to-send arrives; the receiving end is granted ahead and emptied by a kernel. Between
 * ranks of one host both ends have the same slots (fcl_shared.h), and nothing is granted. */
#pragma once

#include "fcl_enqueue.h"
#include "fcl_net.h"
#include "fcl_shared.h"

enum {
	FCL_PEER_CHUNK_BYTES = 131072, /* most of a message of send and recv */
	FCL_PEER_STEPS = 16,           /* a channel's share of the pool that receives them */
};

/* Where messages of the current operation lie in the block of a connection. */
struct fcl_slots {
	uint64_t base, stride; /* bytes */
	uint32_t capacity;     /* bytes of one message */
	uint32_t region;
	int restart; /* slots count from the operation's first step (pool) instead of from step 0 */
};

struct fcl_message {
	uint64_t step, ticket;
	uint32_t bytes, protocol, steps;
	uint8_t *data;
};

/* Messages are counted: kernels fill, the proxy sends, the receiver acknowledges. */
struct fcl_out {
	int opened, connected;
	struct fcl_send_comm *comm; /* NULL inside a host */
	struct fcl_shared shared;
	struct fcl_slots slots;
	uint8_t *block;
	uint64_t block_bytes; /* owned: 0 inside a host */
	uint64_t step;        /* next to fill, of the connection's life */
	uint64_t filled, sent, acknowledged;
	uint32_t protocol, slice_steps;
	struct fcl_message messages[FCL_STEPS];
};

/* Messages are counted: the proxy grants, the network brings, a kernel takes. */
struct fcl_in {
	int opened, connected;
	struct fcl_recv_comm *comm; /* NULL inside a host */
	struct fcl_shared shared;
	struct fcl_region *regions[3];
	struct fcl_slots slots;
	uint8_t *block;
	uint64_t block_bytes; /* owned: 0 where several connections share a pool, or a host */
	uint64_t step;        /* next to take, of the connection's life */
	uint64_t grant_step;  /* next to grant */
	uint64_t first_step;  /* of the operation */
	uint64_t granted, arrived, taken;
	uint64_t to_grant; /* messages of the operation that are not granted yet */
	uint32_t protocol, slice_steps;
	struct fcl_message messages[FCL_STEPS];
};

/* Bytes of the block of a ring connection, its protocols' buffers one after the other. */
uint64_t fcl_block_bytes(const struct fcl_geometry *geometry);
void fcl_slots_ring(struct fcl_slots *slots, const struct fcl_geometry *geometry, uint32_t protocol,
		    uint32_t slice_steps);
/* `pooled`: the channel's share of the receiver's pool; else the first slots of a block. */
void fcl_slots_peer(struct fcl_slots *slots, uint32_t channel, int pooled);

/* A block of zeroed memory at a 2 MiB boundary; NULL with the sentence set. */
uint8_t *fcl_block_map(uint64_t bytes);
void fcl_block_unmap(uint8_t *block, uint64_t bytes);

/* An operation begins: counters are rounded up to a whole chunk. */
void fcl_out_begin(struct fcl_out *out, const struct fcl_slots *slots, uint32_t protocol,
		   uint32_t chunk_steps, uint32_t slice_steps);
void fcl_in_begin(struct fcl_in *in, const struct fcl_slots *slots, uint32_t protocol,
		  uint32_t chunk_steps, uint32_t slice_steps, uint64_t messages);

/* Kernel's side. A slot to fill, or NULL while none is free; then say what was put there. */
uint8_t *fcl_out_slot(struct fcl_out *out);
void fcl_out_fill(struct fcl_out *out, uint32_t wire_bytes);
/* The oldest message that came and was not taken, or NULL. */
const struct fcl_message *fcl_in_message(const struct fcl_in *in);
void fcl_in_take(struct fcl_in *in);

/* Proxies: what can be done now. Each returns how much that was or a negative errno. */
int fcl_out_progress(struct fcl_out *out);
int fcl_in_progress(struct fcl_in *in);
