/* A communicator's inside: lanes of operations, connections, kernels. The node's thread alone touches it,
 * except what is marked. */
#pragma once

#include "fcl_kernel.h"
#include "fcl_node.h"
#include "fcl_places.h"

struct fcl_job {
	struct fcl_operation operation;
	uint64_t ticket;
	struct fcl_outcome outcome;
	int done, error; /* under the node's lock, as the sentence */
	char sentence[FCL_SENTENCE_BYTES];
	struct fcl_job *next; /* in the lane */
	struct fcl_job *
		known; /* among the communicator's jobs that nobody has waited for; under the lock */
};

/* Operations that run one after the other: all collectives are one lane, what goes to a peer and what comes
 * from it are one lane each (as streams of their own would be). */
struct fcl_lane {
	struct fcl_job *first, *last;
	struct fcl_kernel
		*kernels;     /* one per channel, then further ones of each (fcl_comm_run.c) */
	int started;          /* the first job's kernels run */
	struct fcl_plan plan; /* of the first job, a collective */
};

/* Handles and connections of one neighbour relation, by channel; not every channel has each. */
struct fcl_ends {
	struct fcl_in *in;
	struct fcl_out *out;
	uint8_t *in_handles, *out_handles;
};

/* What collectives use towards a rank: by fcl_room. */
struct fcl_link {
	uint32_t rank;
	struct fcl_ends rooms[FCL_ROOMS];
	struct fcl_link *next;
};

struct fcl_peer {
	uint32_t rank;
	struct fcl_ends ends;
	struct fcl_lane sends, receives;
	uint8_t *pool;
	uint64_t pool_bytes;
	struct fcl_region *region;
	int connected;
	struct fcl_peer *next;
};

struct fcl_comm {
	struct fcl_node *node;
	struct fcl_comm_settings settings;
	struct fcl_geometry geometry;
	struct fcl_places places;
	struct fcl_link *links;
	struct fcl_lane collectives;
	struct fcl_peer *peers; /* of send and recv */
	int failed;             /* negative errno; no operation runs any more */
	struct fcl_comm *next;

	/* Under the node's lock. */
	struct fcl_job *submitted, *unwaited;
	uint64_t tickets;
	int refused; /* `failed`, for submitters */
	char sentence[FCL_SENTENCE_BYTES];
	int draining, drained;
};

/* Connections (fcl_comm_connect.c), on the node's thread. */
int fcl_peer_open(struct fcl_comm *comm, uint32_t rank, struct fcl_peer **peer);
int fcl_ends_allocate(struct fcl_ends *ends, uint32_t channels);
/* An end of a collective's connection on `channel`, open when this returns 0. */
int fcl_out_open(struct fcl_comm *comm, struct fcl_ends *ends, uint32_t peer, uint32_t channel);
int fcl_in_open(struct fcl_comm *comm, struct fcl_ends *ends, uint32_t peer, uint32_t channel);
/* With the peer's handle of the other end. */
int fcl_out_connect(struct fcl_comm *comm, struct fcl_out *out, const uint8_t *handle);
int fcl_in_connect(struct fcl_comm *comm, struct fcl_in *in, const uint8_t *handle);
void fcl_ends_close(struct fcl_comm *comm, struct fcl_ends *ends);
void fcl_peer_close(struct fcl_comm *comm, struct fcl_peer *peer);
struct fcl_peer *fcl_peer_find(struct fcl_comm *comm, uint32_t rank);

/* Links (fcl_comm_links.c). The ends of a connection; NULL with the sentence set where there is none yet. */
struct fcl_out *fcl_link_out(struct fcl_comm *comm, uint32_t rank, uint32_t room, uint32_t channel);
struct fcl_in *fcl_link_in(struct fcl_comm *comm, uint32_t rank, uint32_t room, uint32_t channel);
void fcl_links_close(struct fcl_comm *comm);

/* Trees (fcl_comm_tree.c): how many kernels a channel has, whose first one is ready to start then, the
 * second one a copy of it that takes sums down; or a negative errno. */
int fcl_tree_begin(struct fcl_comm *comm, struct fcl_kernel *kernel, const struct fcl_slots *slots,
		   uint64_t turns);

/* All ends that an NVLS tree has on the kernel's channel; 0 or a negative errno. */
int fcl_nvls_begin(struct fcl_comm *comm, struct fcl_kernel *kernel, const struct fcl_slots *slots,
		   uint64_t turns);

/* Operations (fcl_comm_run.c): how much was done, or the negative errno of what failed. */
int fcl_lane_progress(struct fcl_comm *comm, struct fcl_lane *lane);
int fcl_lane_open(struct fcl_comm *comm, struct fcl_lane *lane);
void fcl_lane_close(struct fcl_comm *comm, struct fcl_lane *lane);
void fcl_job_finish(struct fcl_comm *comm, struct fcl_job *job, int error, const char *sentence);
