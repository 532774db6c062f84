#include <string.h>

#include "fcl_enqueue.h"
#include "fcl_round.h"

enum {
	STEPS = 8,
	LL_BUFFER_BYTES = 524288,
	LL128_BUFFER_BYTES = 4915200,
	SIMPLE_BUFFER_BYTES = 4194304,
	WARP = 32,
	LEAST_THREADS = 3 * WARP,
	GATHERED_ALIGN_BYTES = 256,
	/* Sizes below which we take LL, then LL128: NCCL has a cost model of the machine instead. */
	LL_BELOW_BYTES = 256 << 10,
	LL128_BELOW_BYTES = 4 << 20,
};

void fcl_geometry_set(struct fcl_geometry *geometry, uint64_t simple_bytes)
{
	geometry->buffer_bytes[FCL_LL] = LL_BUFFER_BYTES;
	geometry->buffer_bytes[FCL_LL128] = LL128_BUFFER_BYTES;
	geometry->buffer_bytes[FCL_SIMPLE] = simple_bytes ? simple_bytes : SIMPLE_BUFFER_BYTES;
}

uint32_t fcl_protocol_for(uint64_t bytes)
{
	if (bytes < LL_BELOW_BYTES)
		return FCL_LL;
	return bytes < LL128_BELOW_BYTES ? FCL_LL128 : FCL_SIMPLE;
}

/* Each of these moves one block per rank; the others one tensor. */
uint32_t fcl_blocks(const struct fcl_request *request)
{
	int by_rank = request->kind == FCL_ALL_GATHER || request->kind == FCL_ALL_GATHER_V ||
		      request->kind == FCL_REDUCE_SCATTER;

	return by_rank ? request->ranks : 1;
}

/* src/enqueue.cc: first fewer channels, then fewer threads, until each thread has enough to do. */
static void choose_channels(struct fcl_plan *plan)
{
	const struct fcl_request *request = &plan->request;
	uint64_t bytes = request->count * request->element_bytes * fcl_blocks(request);
	uint32_t channels = request->channels, threads, threshold;

	if (request->heads > 0) { /* an NVLS kernel has all its channels always */
		plan->used = channels;
		return;
	}
	switch (request->protocol) {
	case FCL_LL:
		threads = 512, threshold = 8 * (request->tree ? 1 : request->ranks);
		break;
	case FCL_LL128:
		threads = 640, threshold = 8;
		break;
	default:
		threads = 512, threshold = 64;
	}
	while (bytes < (uint64_t)channels * threads * threshold) {
		if (channels >= 2)
			channels--;
		else if (threads % 128 == 0)
			threads /= 2;
		else
			break;
	}
	if (request->protocol == FCL_SIMPLE)
		threads += request->tree ? 4 * WARP : WARP; /* extra warps for synchronisation */
	plan->threads = (uint32_t)most(threads, LEAST_THREADS);
	plan->used = channels;
}

static void choose_chunk(struct fcl_plan *plan, const struct fcl_geometry *geometry)
{
	const struct fcl_request *request = &plan->request;
	uint64_t step = geometry->buffer_bytes[request->protocol] / STEPS;
	uint64_t bytes, grain;
	int sliced = request->protocol == FCL_SIMPLE && request->kind != FCL_BROADCAST &&
		     request->kind != FCL_ALL_GATHER_V && !request->tree && request->heads == 0;

	plan->chunk_steps = sliced ? 4 : 1;
	plan->slice_steps = sliced ? 2 : 1;
	switch (request->protocol) {
	case FCL_LL:
		bytes = step / 2, grain = 16;
		break;
	case FCL_LL128:
		bytes = step / 16 * 15, grain = 1920;
		break;
	default:
		bytes = step * plan->chunk_steps, grain = 512;
	}
	if (request->version >= 22200)
		plan->chunk = bytes / grain * (grain / request->element_bytes);
	else
		plan->chunk = bytes / request->element_bytes;
}

/* 2.20 and 2.21: even parts, in order. */
uint64_t fcl_alignment(const struct fcl_plan *plan)
{
	uint32_t element = plan->request.element_bytes;

	switch (plan->request.protocol) {
	case FCL_LL:
		return 8 / element * plan->threads;
	case FCL_LL128:
		return 480 / element * (plan->threads / WARP);
	default:
		return 4096 / element;
	}
}

static void parts_even(struct fcl_plan *plan)
{
	const struct fcl_request *request = &plan->request;
	uint64_t bytes = request->count * request->element_bytes;
	uint64_t per_channel = round_up(ceil_div(bytes, plan->used), 16), first = 0;

	for (uint32_t channel = 0; channel < plan->used; channel++) {
		uint64_t left = request->count - first;
		uint64_t share = ceil_div(least(per_channel, left * request->element_bytes),
					  request->element_bytes);
		uint64_t count = least(round_up(share, fcl_alignment(plan)), left);

		plan->parts[channel] = (struct fcl_part){ first, count };
		first += count;
	}
}

/* 2.22 and later: parts in cells, by the traffic a channel should carry. */
struct cells {
	uint64_t bytes; /* of a cell of the tensor */
	uint64_t all, low, middle, high, per_channel;
	uint32_t middles;
};

static void share_cells(const struct fcl_plan *plan, struct cells *cells)
{
	const struct fcl_request *request = &plan->request;
	uint64_t per_byte = request->kind == FCL_ALL_REDUCE ? 2 : fcl_blocks(request);
	uint64_t smallest = request->version >= 22900 ? 32768 : 16384;
	uint64_t traffic, per_channel, cell_traffic;

	if (request->protocol == FCL_LL && request->version >= 22600)
		per_byte *= 4;
	traffic = request->count * request->element_bytes * per_byte;
	if (request->version < 22300) {
		cells->bytes = 16;
		per_channel = most(512, traffic / plan->used);
	} else {
		traffic = most(smallest, traffic);
		cells->bytes = round_up(ceil_div(smallest, per_byte), 16);
		per_channel = request->version < 22900 ? most(smallest, traffic / plan->used)
						       : round_up(traffic / plan->used, 16);
	}
	cell_traffic = cells->bytes * per_byte;
	cells->all = ceil_div(request->count * request->element_bytes, cells->bytes);
	cells->per_channel = least(cells->all, ceil_div(per_channel, cell_traffic));
	if (request->channels == 1)
		cells->low = cells->all;
	else if (request->version < 22300)
		cells->low = least(cells->all, per_channel / cell_traffic);
	else
		cells->low = least(cells->all, ceil_div(per_channel, cell_traffic));
}

static void parts_cells(struct fcl_plan *plan)
{
	const struct fcl_request *request = &plan->request;
	struct cells cells = { 0 };
	uint64_t rest, first = 0;
	uint32_t channel = 0;

	share_cells(plan, &cells);
	rest = cells.all - cells.low;
	cells.middle = cells.per_channel;
	cells.middles = (uint32_t)(cells.per_channel ? rest / cells.per_channel : 0);
	cells.high = cells.per_channel ? rest % cells.per_channel : 0;
	if ((cells.low > 0) + cells.middles + (cells.high > 0) > request->channels) {
		cells.middles = request->channels - 2;
		cells.middle = rest / (cells.middles + 1);
		cells.high = cells.middle + rest % (cells.middles + 1);
	}
	if (cells.high == 0 && cells.middles > 0) {
		cells.high = cells.middle;
		cells.middles--;
	}
	if (cells.low == 0) { /* channel 0 is skipped */
		channel = 1;
		if (cells.middles > 0) {
			cells.low = cells.middle;
			cells.middles--;
		} else {
			cells.low = cells.high;
			cells.high = 0;
		}
	}
	for (uint32_t part = 0; part < cells.middles + 2 && first < request->count; part++) {
		uint64_t size = part == 0               ? cells.low
				: part <= cells.middles ? cells.middle
							: cells.high;
		uint64_t count = least(size * (cells.bytes / request->element_bytes),
				       request->count - first);

		plan->parts[channel++] = (struct fcl_part){ first, count };
		first += count;
	}
	plan->used = channel;
}

/* src/scheduler/allgatherv_sched.cc: as many parts of every block as channels, in whole 256 bytes. */
static void parts_gathered(struct fcl_plan *plan)
{
	uint64_t count = plan->request.count, each = ceil_div(count, plan->used);

	for (uint32_t channel = 0; channel < plan->used; channel++) {
		uint64_t first = least(round_up(channel * each, GATHERED_ALIGN_BYTES), count);
		uint64_t last = least(round_up((channel + 1) * each, GATHERED_ALIGN_BYTES), count);

		plan->parts[channel] = (struct fcl_part){ first, last - first };
	}
}

void fcl_plan_make(struct fcl_plan *plan, const struct fcl_request *request,
		   const struct fcl_geometry *geometry)
{
	memset(plan, 0, sizeof *plan);
	plan->request = *request;
	choose_channels(plan);
	choose_chunk(plan, geometry);
	plan->interleaved = request->version < 22000;
	if (plan->interleaved)
		for (uint32_t channel = 0; channel < plan->used; channel++)
			plan->parts[channel] = (struct fcl_part){ 0, request->count };
	else if (request->version < 22200)
		parts_even(plan);
	else if (request->kind == FCL_ALL_GATHER_V)
		parts_gathered(plan);
	else
		parts_cells(plan);
}
