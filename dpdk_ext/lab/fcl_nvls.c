#include "fcl_nvls.h"
#include "fcl_round.h"

enum {
	CHUNK_BYTES = 131072, /* NCCL_NVLS_CHUNKSIZE */
	OLD_CHUNK_BYTES = 524288,
	MANY_HOSTS = 4,
	MANY_HOSTS_CHUNK_BYTES = 65536, /* NCCL_NVLSTREE_MAX_CHUNKSIZE */
	GRAIN_BYTES = 512,
};

/* `bytes` are shared by `units`, heads by channels. */
static uint64_t chunk_bytes(const struct fcl_request *request, uint64_t bytes, uint64_t units)
{
	static const struct {
		uint64_t factor, most;
	} limits[] = { { 32, 262144 }, { 16, 131072 }, { 4, 65536 }, { 1, 32768 } };
	uint64_t chunk = request->version < 22100 ? OLD_CHUNK_BYTES : CHUNK_BYTES;

	if (request->hosts >= MANY_HOSTS)
		chunk = MANY_HOSTS_CHUNK_BYTES;
	for (uint32_t i = 0; i < sizeof limits / sizeof *limits; i++)
		if (bytes < limits[i].factor * units * chunk && chunk > limits[i].most)
			chunk = limits[i].most;
	return chunk / GRAIN_BYTES * GRAIN_BYTES;
}

void fcl_nvls_loop(const struct fcl_plan *plan, uint32_t channel, uint64_t at,
		   struct fcl_loop *loop)
{
	const struct fcl_request *request = &plan->request;
	const struct fcl_part *part = &plan->parts[channel];
	uint64_t element = request->element_bytes, heads = request->heads;
	uint64_t end = part->first + part->count, grain, whole;
	int by_part = request->version >= 22200;
	uint64_t bytes = (by_part ? part->count : request->count) * element;

	loop->chunk = chunk_bytes(request, bytes, by_part ? heads : heads * plan->used) / element;
	whole = heads * loop->chunk;
	loop->start = at;
	loop->limit = end;
	if (plan->interleaved) { /* up to 2.19 channels take turns, and nothing is cut shorter */
		loop->start += channel * whole;
		whole *= plan->used;
	} else if (end - at < whole) {
		grain = by_part ? 16 / element : fcl_alignment(plan);
		loop->chunk = round_up(ceil_div(end - at, heads), grain);
	}
	loop->stride = loop->chunk;
	loop->next = at + whole;
}

int fcl_nvls_supports(uint32_t type, uint32_t reduction)
{
	switch (type) {
	case FCL_FLOAT32:
	case FCL_FLOAT64:
		return reduction == FCL_SUM;
	case FCL_FLOAT16:
	case FCL_BFLOAT16:
	case FCL_INT32:
	case FCL_INT64:
		return reduction == FCL_SUM || reduction == FCL_MIN || reduction == FCL_MAX;
	default:
		return 0;
	}
}
