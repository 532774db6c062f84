/* The one thread that drives a port and every communicator on it. Other threads hand it operations and
 * calls; it alone touches fcl_net, connections and kernels. */
#pragma once

#include <pthread.h>

#include "fcl_comm.h"
#include "fcl_shared.h"

enum { FCL_SENTENCE_BYTES = 256 };

/* A call another thread wants made on the node's thread. */
struct fcl_call {
	int (*function)(void *argument);
	void *argument;
	int result, done;
	char sentence[FCL_SENTENCE_BYTES];
	struct fcl_call *next;
};

struct fcl_node {
	struct fcl_net *net;
	uint32_t version; /* of NCCL */
	int wake[2];      /* a pipe, which ranks of this host ring too */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a call or an operation was finished */

	/* Under the lock. */
	struct fcl_call *calls;
	int stopping;

	/* The node's thread only. */
	struct fcl_comm *comms;
	uint8_t *scratch;
	uint64_t next_va;
	struct fcl_lending lending;
	int dead; /* negative errno of the port; its sentence: */
	char sentence[FCL_SENTENCE_BYTES];
};

/* Runs `function` on the node's thread and returns what it returned, sentence included. */
int fcl_node_call(struct fcl_node *node, int (*function)(void *argument), void *argument);
void fcl_node_wake(struct fcl_node *node);
/* Waits for `changed` under the lock until `deadline_ms` of fcl_now_ms(); 0, or -ETIMEDOUT. */
int fcl_node_wait_changed(struct fcl_node *node, uint64_t deadline_ms);
uint64_t fcl_now_ms(void);
/* `bytes` of address space for a region, at a 2 MiB boundary as cuMem's are: the same on every host
 * for the same history. */
uint64_t fcl_node_take_va(struct fcl_node *node, uint64_t bytes);

/* A communicator's part of the loop, on the node's thread: how much was done. Errors stay inside. */
int fcl_comm_progress(struct fcl_comm *comm);
void fcl_comm_fail(struct fcl_comm *comm, int error, const char *sentence);
struct fcl_comm **fcl_comm_next(struct fcl_comm *comm);
