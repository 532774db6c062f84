#include "fc_norm.h"

#include <math.h>
#include <string.h>

#include "fc_step_variant.h"

#define LANES 4u
#define THREADS_MOST 512u
#define WARP 32u

/* Both add to the first thread's what the others have; `threads`: a power of two. */
static float halved(float *own, uint32_t threads)
{
	for (uint32_t apart = threads / 2; apart; apart /= 2)
		for (uint32_t t = 0; t < apart; t++)
			own[t] += own[t + apart];
	return own[0];
}

static float paired(float *own, uint32_t threads)
{
	for (uint32_t apart = threads / 2; apart >= WARP; apart /= 2)
		for (uint32_t t = 0; t < apart; t++)
			own[t] += own[t + apart];
	for (uint32_t apart = 1; apart < WARP && apart < threads; apart *= 2)
		for (uint32_t t = 0; t + apart < WARP && t + apart < threads; t += 2 * apart)
			own[t] += own[t + apart];
	return own[0];
}

/* The sum of a block's threads; what they have is no longer there. */
static float block_sum(float *own, uint32_t threads, uint32_t order)
{
	if (order == FC_NORM_ALONE_EARLIER)
		return paired(own, threads);
	if (order == FC_NORM_ALONE || threads <= WARP)
		return halved(own, threads);
	for (uint32_t warp = 0; warp < threads / WARP; warp++)
		own[warp] = halved(own + warp * WARP, WARP);
	return halved(own, threads / WARP);
}

static void add_squares(float *sums, const float *values, uint64_t count)
{
	const uint64_t odd = count % FC_LINE_ELEMENTS, whole = count - odd;
	float padded[FC_LINE_ELEMENTS] = { 0 }; /* a square of zero changes no sum */

	fc_step_chosen()->squares(sums, values, whole);
	if (odd) {
		memcpy(padded, values + whole, odd * sizeof(float));
		fc_step_chosen()->squares(sums + whole, padded, FC_LINE_ELEMENTS);
	}
}

static float part_sum(const float *values, const struct fc_norm_part *part)
{
	/* As the elements of a turn lie; whole lines. */
	float sums[LANES * THREADS_MOST] __attribute__((aligned(64))) = { 0 };
	float own[THREADS_MOST];
	const uint64_t turn = LANES * part->threads;
	const uint32_t next = part->beside ? 1 : part->threads;

	for (uint64_t at = part->first; at < part->end; at += part->stride)
		add_squares(sums, values + at, part->end - at < turn ? part->end - at : turn);
	for (uint32_t t = 0; t < part->tail; t++) {
		const float x = values[part->end + t];
		sums[LANES * t] = fmaf(x, x, sums[LANES * t]);
	}
	for (uint32_t t = 0; t < part->threads; t++) {
		const float *lane = sums + (part->beside ? LANES * t : t);
		own[t] = lane[0] + lane[next] + lane[2 * next] + lane[3 * next];
	}
	return block_sum(own, part->threads, part->order);
}

void fc_norm_work(struct fc_norm_job *job)
{
	for (;;) {
		const uint64_t next = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
		if (next >= job->count)
			return;
		job->sums[next] = part_sum(job->values, &job->parts[next]);
	}
}

float fc_norm_root(const float *sums, uint64_t count, uint32_t threads, uint32_t order)
{
	float own[THREADS_MOST] = { 0 };

	for (uint64_t i = 0; i < count; i++)
		own[i % threads] += sums[i];
	return sqrtf(block_sum(own, threads, order));
}
