#include "fcl_enqueue.h"
#include "fcl_nvls.h"
#include "fcl_round.h"
#include "fcl_tree.h"

enum { WARP = 32 };

/* Chunks of one turn of the outer loop, which NCCL calls nchunksPerLoop. */
static uint32_t chunks_per_loop(const struct fcl_request *request)
{
	return request->kind == FCL_BROADCAST ? 1 : request->ranks;
}

/* Up to 2.19: a loop is shared by all channels, and a short last one is shared out evenly. */
static void loop_interleaved(const struct fcl_plan *plan, uint32_t channel, uint64_t at,
			     struct fcl_loop *loop)
{
	const struct fcl_request *request = &plan->request;
	uint64_t rest = request->count - at, element = request->element_bytes;
	uint64_t in_loop = chunks_per_loop(request), stripes = plan->used, minimum;
	int all_reduce = request->kind == FCL_ALL_REDUCE;
	/* Blocks of all_gather and reduce_scatter are cut alike, so a loop has one chunk of each channel. */
	uint64_t shares = stripes * (all_reduce ? in_loop : 1);

	switch (request->protocol) {
	case FCL_SIMPLE:
		loop->chunk = least(plan->chunk, ceil_div(rest, shares));
		loop->chunk = round_up(loop->chunk, (plan->threads - WARP) * 8 / element);
		break;
	case FCL_LL:
		minimum = plan->threads * (8 / element);
		if (all_reduce) {
			loop->chunk =
				least(plan->chunk, ceil_div(rest, shares * minimum) * minimum);
		} else {
			uint64_t bytes = request->count * element * fcl_blocks(request);
			uint64_t capacity = plan->chunk * element * stripes * in_loop;
			uint64_t last = round_up(ceil_div(bytes % capacity, stripes * in_loop),
						 plan->threads * 8) /
					element;

			loop->chunk = rest >= stripes * plan->chunk ? plan->chunk : last;
		}
		break;
	default:
		minimum = plan->threads * (60 / element) / (request->kind == FCL_BROADCAST ? 1 : 2);
		loop->chunk = least(plan->chunk, ceil_div(rest, shares * minimum) * minimum);
	}
	loop->limit = request->count;
	if (all_reduce && request->protocol == FCL_SIMPLE) {
		loop->start = at + channel * in_loop * loop->chunk;
		loop->stride = loop->chunk;
	} else {
		loop->start = at + channel * loop->chunk;
		loop->stride = stripes * loop->chunk;
	}
	loop->next = at + shares * plan->chunk;
}

static void loop_contiguous(const struct fcl_plan *plan, uint32_t channel, uint64_t at,
			    struct fcl_loop *loop)
{
	const struct fcl_request *request = &plan->request;
	const struct fcl_part *part = &plan->parts[channel];
	uint64_t end = part->first + part->count, rest = end - at, ranks = request->ranks;
	uint64_t whole = request->kind == FCL_ALL_REDUCE ? ranks * plan->chunk : plan->chunk;

	loop->chunk = plan->chunk;
	if (request->kind == FCL_ALL_REDUCE && rest < whole) {
		uint64_t grain = request->version < 22200 ? fcl_alignment(plan)
							  : 16 / request->element_bytes;

		loop->chunk = round_up(ceil_div(rest, ranks), grain);
	}
	loop->start = at;
	loop->stride = loop->chunk;
	loop->limit = end;
	loop->next = at + whole;
}

/* Up to 2.19 channels take a chunk each by turns, shorter ones where one turn is more than enough. */
static void loop_tree(const struct fcl_plan *plan, uint32_t channel, uint64_t at,
		      struct fcl_loop *loop)
{
	const struct fcl_request *request = &plan->request;
	const struct fcl_part *part = &plan->parts[channel];
	uint64_t element = request->element_bytes, minimum;

	loop->chunk = fcl_tree_chunk(plan, part->count);
	loop->start = at;
	loop->next = at + loop->chunk;
	loop->limit = part->first + part->count;
	if (plan->interleaved) {
		loop->next = at + plan->used * loop->chunk;
		minimum = request->protocol == FCL_SIMPLE
				  ? (plan->threads - 2 * WARP) * 8 * (8 / element)
			  : request->protocol == FCL_LL ? plan->threads * (8 / element)
							: plan->threads * (60 / element) / 8;
		if (plan->used * loop->chunk > request->count)
			loop->chunk = ceil_div(request->count, plan->used * minimum) * minimum;
		loop->start += channel * loop->chunk;
	}
}

static int loop_at(const struct fcl_plan *plan, uint32_t channel, uint64_t at,
		   struct fcl_loop *loop)
{
	const struct fcl_part *part = &plan->parts[channel];

	if (part->count == 0 || at >= part->first + part->count)
		return 0;
	if (plan->request.heads > 0)
		fcl_nvls_loop(plan, channel, at, loop);
	else if (plan->request.tree)
		loop_tree(plan, channel, at, loop);
	else if (plan->interleaved)
		loop_interleaved(plan, channel, at, loop);
	else
		loop_contiguous(plan, channel, at, loop);
	return 1;
}

int fcl_loop_first(const struct fcl_plan *plan, uint32_t channel, struct fcl_loop *loop)
{
	return loop_at(plan, channel, plan->parts[channel].first, loop);
}

int fcl_loop_next(const struct fcl_plan *plan, uint32_t channel, struct fcl_loop *loop)
{
	return loop_at(plan, channel, loop->next, loop);
}

uint64_t fcl_loop_count(const struct fcl_plan *plan, uint32_t channel)
{
	struct fcl_loop loop;
	uint64_t turns = 0;

	for (int more = fcl_loop_first(plan, channel, &loop); more;
	     more = fcl_loop_next(plan, channel, &loop))
		turns++;
	return turns;
}
