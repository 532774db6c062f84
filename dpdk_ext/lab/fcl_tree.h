/* NCCL's double binary tree (src/graph/trees.cc, connect.cc): who stands above whom on each channel, and
 * how a channel's part is cut for it (src/enqueue.cc). One rank a node; ranks in ring order. */
#pragma once

#include "fcl_enqueue.h"

enum { FCL_TREE_CHILDREN = 3, FCL_TREE_NOBODY = UINT32_MAX };

struct fcl_tree {
	uint32_t parent; /* FCL_TREE_NOBODY: this rank is the root */
	uint32_t children[FCL_TREE_CHILDREN];
	uint32_t count; /* of children */
};

/* The first tree or the second one over `ranks`, which are nodes where those have several. */
void fcl_tree_of(int second, uint32_t rank, uint32_t ranks, struct fcl_tree *tree);
/* Elements of a full chunk of a channel that has `count`. */
uint64_t fcl_tree_chunk(const struct fcl_plan *plan, uint64_t count);
