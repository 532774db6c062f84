/* A connection between two ranks of one host: the receiver's slots are memory of both, as a GPU's are over
 * NVLink. Nothing has a name: a process lends its memory and its bell as descriptors that the peer opens
 * through /proc, so that whoever is killed leaves nothing behind. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum { FCL_STEPS = 8 }; /* slots of a connection */

struct fcl_node;

/* Messages are counted from the connection's first: the sender fills, the receiver takes. */
struct fcl_shared_counts {
	_Atomic uint64_t filled;
	uint32_t bytes[FCL_STEPS];
	_Alignas(64) _Atomic uint64_t taken;
};

struct fcl_shared {
	struct fcl_shared_counts *counts; /* of both; NULL: no shared connection */
	uint8_t *block;                   /* the slots */
	uint64_t mapped_bytes;
	uint64_t offset; /* in the receiver's memory */
	int bell;        /* what wakes the peer */
};

/* Each side makes its half, they swap handles of FCL_HANDLE_BYTES, each side connects. All return 0 or a
 * negative errno, and run on the node's thread. */
int fcl_shared_open_in(struct fcl_node *node, uint64_t block_bytes, struct fcl_shared *shared,
		       uint8_t *handle);
void fcl_shared_open_out(struct fcl_node *node, uint8_t *handle);
int fcl_shared_connect_in(struct fcl_node *node, struct fcl_shared *shared, const uint8_t *handle);
int fcl_shared_connect_out(struct fcl_node *node, struct fcl_shared *shared, const uint8_t *handle);
/* `node` of the receiver, whose memory is freed; NULL: of the sender. */
void fcl_shared_close(struct fcl_node *node, struct fcl_shared *shared);
/* Wakes the peer's thread. */
void fcl_shared_ring(const struct fcl_shared *shared);

/* What a node lends and has been lent. */
struct fcl_bell {
	int pid, number; /* the peer's process, and its descriptor there */
	int descriptor;  /* here */
	struct fcl_bell *next;
};
struct fcl_lending {
	int memory; /* of all connections in which this node receives; -1: none yet */
	uint64_t bytes;
	struct fcl_bell *bells;
};
void fcl_lending_close(struct fcl_lending *lending);
