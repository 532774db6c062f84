/* Free ranges of a region, merged where they touch. Kept in this process's memory only, since the
 * blocks in use determine them. The lowest range that is long enough is allocated, so that the
 * same blocks in use give the same result in every process. */
#ifndef FC_EXTENTS_H
#define FC_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

/* A node of a treap: a search tree by `at` with priorities hashed from `at`. */
struct fc_extent {
	uint64_t at, bytes;
	uint64_t longest; /* longest range in this subtree */
	uint32_t left, right;
};

struct fc_extents {
	struct fc_extent *nodes; /* node 0 is unused: no node */
	uint32_t root, unused;   /* head of the list of unused nodes, linked by `left` */
	uint32_t capacity;
};

/* Memory for `most` ranges, one more than there can be blocks in use. Returns false if there is
 * none. */
bool fc_extents_open(struct fc_extents *e, uint32_t most);
void fc_extents_close(struct fc_extents *e);
/* Adds [at, at + bytes), which touches no other free range. */
void fc_extents_add(struct fc_extents *e, uint64_t at, uint64_t bytes);
/* Adds [at, at + bytes), merged with the free ranges on both sides. */
void fc_extents_give(struct fc_extents *e, uint64_t at, uint64_t bytes);
/* Allocates `bytes` and sets *at; false: no range is long enough. */
bool fc_extents_take(struct fc_extents *e, uint64_t bytes, uint64_t *at);

#endif
