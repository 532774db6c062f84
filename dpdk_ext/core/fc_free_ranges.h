/* Free ranges of a region, merged where they touch. Kept in this process's memory only, since the
 * blocks in use determine them. The lowest range that is long enough is allocated, so that the
 * same blocks in use give the same result in every process. */
#ifndef FC_FREE_RANGES_H
#define FC_FREE_RANGES_H

#include <stdbool.h>
#include <stdint.h>

/* A node of a treap: a search tree by `at` with priorities hashed from `at`. */
struct fc_free_range {
	uint64_t at, bytes;
	uint64_t longest; /* longest range in this subtree */
	uint32_t left, right;
};

struct fc_free_ranges {
	struct fc_free_range *nodes; /* node 0 is unused: no node */
	uint32_t root, unused;       /* head of the list of unused nodes, linked by `left` */
	uint32_t capacity;
};

/* Memory for `most` ranges, one more than there can be blocks in use. Returns false if there is
 * none. */
bool fc_free_ranges_open(struct fc_free_ranges *e, uint32_t most);
void fc_free_ranges_close(struct fc_free_ranges *e);
/* Adds [at, at + bytes), which touches no other free range. */
void fc_free_ranges_add(struct fc_free_ranges *e, uint64_t at, uint64_t bytes);
/* Adds [at, at + bytes), merged with the free ranges on both sides. */
void fc_free_ranges_give_back(struct fc_free_ranges *e, uint64_t at, uint64_t bytes);
/* Allocates `bytes` and sets *at; false: no range is long enough. */
bool fc_free_ranges_allocate(struct fc_free_ranges *e, uint64_t bytes, uint64_t *at);

#endif
