#include "fcl_tree.h"
#include "fcl_round.h"

enum {
	LL128_STEP_BYTES = 614400,
	DEEP_CHUNK_BYTES = 131072,
	MIDDLE_CHUNK_BYTES = 65536,
	LEAST_CHUNK_BYTES = 32768
};

/* In the first tree; leaves are odd, the lowest bit set tells how high a rank stands. */
static uint32_t above(uint32_t rank, uint32_t ranks)
{
	uint32_t bit = rank & -rank, up = (rank ^ bit) | (bit << 1);

	if (rank == 0)
		return FCL_TREE_NOBODY;
	return up < ranks ? up : rank ^ bit;
}

/* The second tree is the first one's mirror, or of an odd number of ranks moved on by one. */
static uint32_t parent_of(uint32_t rank, uint32_t ranks, int second)
{
	uint32_t up;

	if (!second)
		return above(rank, ranks);
	if (ranks % 2 == 0) {
		up = above(ranks - 1 - rank, ranks);
		return up == FCL_TREE_NOBODY ? up : ranks - 1 - up;
	}
	up = above((rank + ranks - 1) % ranks, ranks);
	return up == FCL_TREE_NOBODY ? up : (up + 1) % ranks;
}

void fcl_tree_of(int second, uint32_t rank, uint32_t ranks, struct fcl_tree *tree)
{
	*tree = (struct fcl_tree){ .parent = parent_of(rank, ranks, second) };
	for (uint32_t other = 0; other < ranks && tree->count < 2; other++)
		if (parent_of(other, ranks, second) == rank)
			tree->children[tree->count++] = other;
}

static uint32_t log2_of(uint32_t ranks)
{
	uint32_t log = 0;

	while (ranks >>= 1)
		log++;
	return log;
}

/* `bytes` are shared by `channels`. */
static uint64_t chunk_bytes(const struct fcl_plan *plan, uint64_t bytes, uint64_t channels)
{
	const struct fcl_request *request = &plan->request;
	uint64_t size = plan->chunk * request->element_bytes;
	double gpus = request->ranks / request->hosts, log = log2_of(request->hosts);
	double deep = (1 + log + 0.1 * gpus) / gpus, depth = gpus - 1 + log;

	if (request->protocol == FCL_LL128) {
		if (request->version < 22000)
			size = LL128_STEP_BYTES;
		while (bytes / (channels * size) < deep * 64 && size > DEEP_CHUNK_BYTES)
			size /= 2;
		while (bytes / (channels * size) < deep * 16 && size > LEAST_CHUNK_BYTES)
			size /= 2;
		if (request->version < 22000)
			size = size * 15 / 16;
	} else if (request->protocol == FCL_SIMPLE && request->version < 22000) {
		while (bytes / (channels * size) < depth * 8 && size > DEEP_CHUNK_BYTES)
			size /= 2;
		while (bytes / (channels * size) < depth * 4 && size > MIDDLE_CHUNK_BYTES)
			size /= 2;
		while (bytes / (channels * size) < depth && size > LEAST_CHUNK_BYTES)
			size /= 2;
	}
	return size;
}

uint64_t fcl_tree_chunk(const struct fcl_plan *plan, uint64_t count)
{
	const struct fcl_request *request = &plan->request;
	uint32_t element = request->element_bytes;
	uint64_t grain = request->protocol == FCL_LL      ? 16
			 : request->protocol == FCL_LL128 ? 1920
							  : 512;

	if (request->version < 22200)
		return chunk_bytes(plan, request->count * element, plan->used) / element;
	return chunk_bytes(plan, count * element, 1) / grain * (grain / element);
}
