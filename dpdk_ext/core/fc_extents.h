/* Free ranges of a region, each as long as it can be: in this process' memory alone, since what
 * is in use tells what is free. The lowest range that is long enough is taken, so the same
 * blocks in use always give the same one, whoever found them. */
#ifndef FC_EXTENTS_H
#define FC_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

/* A node of a treap: a search tree by `at`, whose priorities are mixed from `at`. */
struct fc_extent {
	uint64_t at, bytes;
	uint64_t longest; /* of all in this subtree */
	uint32_t left, right;
};

struct fc_extents {
	struct fc_extent *nodes; /* node 0 is no node */
	uint32_t root, unused;   /* of the list of unused nodes, by `left` */
	uint32_t capacity;
};

/* Room for `most` ranges: one more than there can be blocks in use. False: no memory. */
bool fc_extents_open(struct fc_extents *e, uint32_t most);
void fc_extents_close(struct fc_extents *e);
/* [at, at + bytes) is free now and touches no other free byte. */
void fc_extents_add(struct fc_extents *e, uint64_t at, uint64_t bytes);
/* The same, joined with what is free on either side. */
void fc_extents_give(struct fc_extents *e, uint64_t at, uint64_t bytes);
/* Takes `bytes` and says where; false: no range is so long. */
bool fc_extents_take(struct fc_extents *e, uint64_t bytes, uint64_t *at);

#endif
