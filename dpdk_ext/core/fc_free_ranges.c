#include "fc_free_ranges.h"

#include <stdlib.h>

bool fc_free_ranges_open(struct fc_free_ranges *e, uint32_t most)
{
	*e = (struct fc_free_ranges){ .nodes = calloc(most + 1ull, sizeof *e->nodes),
				      .unused = 1,
				      .capacity = most + 1 };
	if (!e->nodes)
		return false;
	for (uint32_t n = 1; n < e->capacity; n++)
		e->nodes[n].left = n + 1 < e->capacity ? n + 1 : 0;
	return true;
}

void fc_free_ranges_close(struct fc_free_ranges *e)
{
	free(e->nodes);
	e->nodes = NULL;
}

/* splitmix64's finalizer: the tree stays balanced for any order of addresses. */
static uint64_t priority(uint64_t at)
{
	at = (at ^ at >> 30) * 0xbf58476d1ce4e5b9ull;
	at = (at ^ at >> 27) * 0x94d049bb133111ebull;
	return at ^ at >> 31;
}

static void update(struct fc_free_ranges *e, uint32_t node)
{
	struct fc_free_range *n = &e->nodes[node];
	const uint64_t left = e->nodes[n->left].longest, right = e->nodes[n->right].longest;

	n->longest = n->bytes > left ? n->bytes : left;
	n->longest = n->longest > right ? n->longest : right;
}

/* Splits the ranges into those below `at` and the others. */
static void split(struct fc_free_ranges *e, uint32_t node, uint64_t at, uint32_t *below,
		  uint32_t *others)
{
	struct fc_free_range *n = &e->nodes[node];

	if (!node) {
		*below = *others = 0;
	} else if (n->at < at) {
		split(e, n->right, at, &n->right, others);
		*below = node;
		update(e, node);
	} else {
		split(e, n->left, at, below, &n->left);
		*others = node;
		update(e, node);
	}
}

static uint32_t join(struct fc_free_ranges *e, uint32_t below, uint32_t above)
{
	if (!below || !above)
		return below ? below : above;
	if (priority(e->nodes[below].at) > priority(e->nodes[above].at)) {
		e->nodes[below].right = join(e, e->nodes[below].right, above);
		update(e, below);
		return below;
	}
	e->nodes[above].left = join(e, below, e->nodes[above].left);
	update(e, above);
	return above;
}

void fc_free_ranges_add(struct fc_free_ranges *e, uint64_t at, uint64_t bytes)
{
	const uint32_t node = e->unused;
	uint32_t below, above;

	/* There are as many nodes as there can be gaps between blocks. */
	if (!node || !bytes)
		return;
	e->unused = e->nodes[node].left;
	e->nodes[node] = (struct fc_free_range){ .at = at, .bytes = bytes, .longest = bytes };
	split(e, e->root, at, &below, &above);
	e->root = join(e, join(e, below, node), above);
}

/* Removes the range that begins at `at`. */
static void drop(struct fc_free_ranges *e, uint64_t at)
{
	uint32_t below, node, above;

	split(e, e->root, at, &below, &above);
	split(e, above, at + 1, &node, &above);
	e->root = join(e, below, above);
	e->nodes[node].left = e->unused;
	e->unused = node;
}

void fc_free_ranges_give_back(struct fc_free_ranges *e, uint64_t at, uint64_t bytes)
{
	uint32_t before = 0, behind = 0;

	for (uint32_t node = e->root; node;) {
		const struct fc_free_range *n = &e->nodes[node];
		if (n->at < at)
			before = node;
		else
			behind = node;
		node = n->at < at ? n->right : n->left;
	}
	const struct fc_free_range left = e->nodes[before], right = e->nodes[behind];
	if (before && left.at + left.bytes == at) {
		drop(e, left.at);
		at = left.at;
		bytes += left.bytes;
	}
	if (behind && right.at == at + bytes) {
		drop(e, right.at);
		bytes += right.bytes;
	}
	fc_free_ranges_add(e, at, bytes);
}

bool fc_free_ranges_allocate(struct fc_free_ranges *e, uint64_t bytes, uint64_t *at)
{
	uint32_t node = e->root;

	if (!node || e->nodes[node].longest < bytes)
		return false;
	while (e->nodes[node].bytes < bytes || e->nodes[e->nodes[node].left].longest >= bytes)
		node = e->nodes[e->nodes[node].left].longest >= bytes ? e->nodes[node].left
								      : e->nodes[node].right;
	const struct fc_free_range found = e->nodes[node];
	*at = found.at;
	drop(e, found.at);
	fc_free_ranges_add(e, found.at + bytes, found.bytes - bytes);
	return true;
}
