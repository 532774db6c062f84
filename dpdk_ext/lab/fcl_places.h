/* Where the ranks of a communicator are, and whom an algorithm links them to. The caller decides which ring
 * a channel has and which ranks share a host (flowcheck/lab/roce_backend/rank_places.py); here it is kept. */
#pragma once

#include "fcl_comm.h"
#include "fcl_tree.h"

struct fcl_places {
	uint32_t rank, ranks, channels;
	uint32_t *orders;  /* [channel][ranks]: the channel's ring, from rank 0 on */
	uint32_t *indices; /* [channel]: this rank's place in it */
	uint32_t *hosts;   /* [ranks] */
	uint32_t *chains;  /* [channel][ranks], by host; NULL: none */
	uint32_t found;    /* channels with the first tree, before the second one has its turn */
	int flat;          /* every rank has a host of its own */
	uint32_t host_count;
	uint32_t locals[FCL_MOST_GPUS],
		local_count;         /* ranks of this host, ascending; with heads only */
	uint32_t heads, *head_ranks; /* of NVLS trees: [host][heads] */
	uint32_t head;               /* which one this rank is; `heads`: none */
};

/* Connections of one pair of ranks, kept apart by what they are for. */
enum fcl_room {
	FCL_FLOWS,   /* of rings and trees, which share them as NCCL's do */
	FCL_OFFERS,  /* inside a host: what ranks give a head to sum, */
	FCL_RESULTS, /* and the sums that they have from it */
	FCL_ROOMS,
};

struct fcl_edge {
	uint32_t peer, room;
	int out; /* from this rank; else to it */
};

enum { FCL_MOST_EDGES = 6 + 4 * FCL_MOST_GPUS };

/* Copies what `settings` say; 0 or a negative errno. */
int fcl_places_open(struct fcl_places *places, const struct fcl_comm_settings *settings);
void fcl_places_close(struct fcl_places *places);
/* Whether a rank is on this rank's host: then nothing between them crosses the network. */
int fcl_is_local(const struct fcl_places *places, uint32_t rank);
/* The ring of a channel, and the rank `ahead` places after this one in it. */
const uint32_t *fcl_order(const struct fcl_places *places, uint32_t channel);
uint32_t fcl_after(const struct fcl_places *places, uint32_t channel, uint32_t ahead);
uint32_t fcl_head_rank(const struct fcl_places *places, uint32_t host, uint32_t head);
/* Who stands above and below this rank in a channel's tree; both ranks. */
void fcl_tree_on(const struct fcl_places *places, uint32_t channel, struct fcl_tree *tree);
/* The same in the NVLS tree of this rank, which is a head. */
void fcl_nvls_tree_on(const struct fcl_places *places, uint32_t channel, struct fcl_tree *tree);
/* What `algorithm` needs on a channel: at most FCL_MOST_EDGES, no two alike; their count. */
uint32_t fcl_edges(const struct fcl_places *places, uint32_t algorithm, uint32_t channel,
		   struct fcl_edge *edges);
