#include "fc_step.h"

#include <stdlib.h>
#include <string.h>

#include "fc_copy.h"
#include "fc_digest.h"
#include "fc_step_variant.h"

static const struct fc_step_variant *chosen = &fc_step_plain;

/* One section of an item on its way into the new copy. */
struct out {
	uint8_t *at;  /* where the run that is made next belongs */
	uint32_t odd; /* bytes by which that is past the beginning of a cache line */
	uint64_t sums[FC_DIGEST_WORDS];
	/* By turns: a run, behind the last line of the one before it. */
	uint8_t runs[2][FC_LINE + FC_RUN_BYTES] __attribute__((aligned(64)));
};

struct work {
	struct out out[FC_STEP_SECTIONS_MAX];
	/* A ragged end, filled up to whole lines. */
	float padded[FC_STEP_SECTIONS_MAX + 1][FC_RUN];
};

/* The run that was made becomes the one that goes out. */
static void turn(struct work *work, struct fc_step_run *run, uint64_t turned)
{
	run->gradient += FC_RUN;
	run->at += FC_RUN;
	run->sends = true;
	for (uint32_t s = 0; s < run->sections; s++) {
		struct out *out = &work->out[s];
		uint8_t *made = out->runs[turned % 2] + FC_LINE;
		uint8_t *next = out->runs[(turned + 1) % 2] + FC_LINE;

		memcpy(next - FC_LINE, made + FC_RUN_BYTES - FC_LINE, FC_LINE);
		run->sent[s] = (struct fc_step_sent){ out->sums, made, out->at - out->odd,
						      made - out->odd };
		run->from[s] += FC_RUN;
		run->to[s] = (float *)next;
		out->at += FC_RUN_BYTES;
		translate_ahead(out->at);
	}
}

/* An item's first run where it begins within a line: other threads may write what lies before. */
static void send_first(struct work *work, struct fc_step_run *run)
{
	for (uint32_t s = 0; s < run->sections; s++) {
		const struct fc_step_sent *sent = &run->sent[s];
		const struct out *out = &work->out[s];

		chosen->digest(sent->sums, sent->made, FC_RUN_BYTES / FC_DIGEST_PAIR);
		memcpy(out->at - FC_RUN_BYTES, sent->made, FC_RUN_BYTES - out->odd);
	}
	run->sends = false;
}

/* What is left of an item, at most a run, and the line that it shares with what was made before.
 * Vectors read whole lines: what is read beyond its end are zeros of ours, and what is made of them
 * is not written. */
static void take_last(struct work *work, struct fc_step_run *run, uint32_t count, bool alone)
{
	const size_t bytes = count * sizeof(float);

	run->count = (count + FC_LINE_ELEMENTS - 1) / FC_LINE_ELEMENTS * FC_LINE_ELEMENTS;
	run->sends = false;
	if (run->count != count) {
		memset(work->padded, 0, sizeof work->padded);
		for (uint32_t s = 0; s < run->sections; s++) {
			memcpy(work->padded[s], run->from[s], bytes);
			run->from[s] = work->padded[s];
		}
		float *last = work->padded[FC_STEP_SECTIONS_MAX];
		memcpy(last, run->gradient, bytes);
		run->gradient = last;
	}
	chosen->take(run);
	for (uint32_t s = 0; s < run->sections; s++) {
		const struct out *out = &work->out[s];
		const uint32_t shared = alone ? 0 : out->odd;
		memcpy(out->at - shared, (uint8_t *)run->to[s] - shared, bytes + shared);
	}
}

/* Returns whether each section's part of the new copy begins with a line. */
static bool begin_item(struct work *work, const struct fc_step_job *job,
		       const struct fc_step_item *item, struct fc_step_run *run)
{
	uint32_t odd = 0;

	memset(run, 0, sizeof *run);
	run->row = &job->rows[item->row];
	run->wide = job->wide ? &job->wide[item->row] : NULL;
	run->gradient = job->gradient + item->first;
	run->sections = job->sections;
	run->root = job->root;
	run->count = FC_RUN;
	for (uint32_t s = 0; s < job->sections; s++) {
		struct out *out = &work->out[s];
		run->from[s] = job->from[s] + item->first;
		run->to[s] = (float *)(out->runs[0] + FC_LINE);
		out->at = (uint8_t *)(job->to[s] + item->first);
		out->odd = (uint32_t)((uintptr_t)out->at % FC_LINE);
		odd |= out->odd;
		fc_digest_begin(out->sums);
	}
	return odd == 0;
}

/* Fewer runs than this are not worth a beginning and an end of their own. */
#define FLOW_RUNS_LEAST 4u

static bool flows(const struct fc_step_row *row, uint64_t runs, bool aligned)
{
	const bool plain = (row->flags & ~(uint32_t)FC_STEP_DECAY_PARAMETER) == 0;

	return chosen->flow && aligned && runs >= FLOW_RUNS_LEAST && row->rule == FC_STEP_ADAM &&
	       plain;
}

/* All runs of an item but the last one. */
static void take_flow(struct work *work, struct fc_step_run *run, uint64_t runs)
{
	uint64_t *sums[3] = { work->out[0].sums, work->out[1].sums, work->out[2].sums };
	struct fc_step_run flow = *run;

	for (uint32_t s = 0; s < run->sections; s++)
		flow.to[s] = (float *)work->out[s].at;
	chosen->flow(&flow, runs, sums);
	run->gradient += runs * FC_RUN;
	for (uint32_t s = 0; s < run->sections; s++) {
		struct out *out = &work->out[s];
		run->from[s] += runs * FC_RUN;
		out->at += runs * FC_RUN_BYTES;
	}
}

/* Of everything, by the lanes and what has not gone into them yet. */
static void end_digest(uint64_t *sums, const uint8_t *rest, uint64_t rest_bytes, uint64_t bytes,
		       uint8_t *out)
{
	const uint64_t pairs = rest_bytes / FC_DIGEST_PAIR, odd = rest_bytes % FC_DIGEST_PAIR;
	uint8_t last[FC_DIGEST_PAIR] = { 0 };

	chosen->digest(sums, rest, pairs);
	if (odd) {
		memcpy(last, rest + rest_bytes - odd, odd);
		chosen->digest(sums, last, 1);
	}
	fc_digest_end(sums, bytes, out);
}

static void take_item(struct work *work, const struct fc_step_job *job, uint64_t number)
{
	const struct fc_step_item *item = &job->items[number];
	const uint64_t bytes = item->elements * sizeof(float);
	const uint64_t whole = (item->elements - 1) / FC_RUN; /* the last run is made apart */
	struct fc_step_run run;
	const bool aligned = begin_item(work, job, item, &run);

	const bool flowing = flows(run.row, whole, aligned);

	if (flowing)
		take_flow(work, &run, whole);
	for (uint64_t made = 0; made < whole && !flowing; made++) {
		chosen->take(&run);
		turn(work, &run, made);
		if (made == 0 && !aligned)
			send_first(work, &run);
	}
	for (uint32_t s = 0; run.sends && s < job->sections; s++)
		chosen->send(&run.sent[s]);
	take_last(work, &run, (uint32_t)(item->elements - whole * FC_RUN), whole == 0);
	for (uint32_t s = 0; job->digests && s < job->sections; s++)
		end_digest(work->out[s].sums, (uint8_t *)run.to[s], bytes - whole * FC_RUN_BYTES,
			   bytes,
			   job->digests + (number * job->sections + s) * FC_STEP_DIGEST_BYTES);
}

void fc_step_work(struct fc_step_job *job)
{
	struct work work __attribute__((aligned(64)));

	for (;;) {
		const uint64_t next = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
		if (next >= job->count)
			break;
		take_item(&work, job, job->chosen ? job->chosen[next] : next);
	}
	fc_copy_fence();
}

void fc_step_digest(const uint8_t *data, uint64_t bytes, uint8_t *out)
{
	uint64_t sums[FC_DIGEST_WORDS];

	fc_digest_begin(sums);
	end_digest(sums, data, bytes, bytes, out);
}

int fc_step_root_runs(uint32_t root)
{
	if (root != FC_STEP_ROOT_FUSED)
		return root <= FC_STEP_ROOT_NEWTON;
#if defined(__x86_64__)
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
#else
	return 0;
#endif
}

void fc_step_roots(const float *values, float *out, uint64_t count, uint32_t root)
{
	float padded[FC_LINE_ELEMENTS] = { 0 }, ends[FC_LINE_ELEMENTS];
	const uint32_t rest = (uint32_t)(count % FC_LINE_ELEMENTS);

	for (uint64_t done = 0; done + FC_LINE_ELEMENTS <= count; done += FC_LINE_ELEMENTS)
		chosen->roots(values + done, out + done, FC_LINE_ELEMENTS, root);
	memcpy(padded, values + count - rest, rest * sizeof(float));
	chosen->roots(padded, ends, FC_LINE_ELEMENTS, root);
	memcpy(out + count - rest, ends, rest * sizeof(float));
}

int fc_step_choose(const char *name)
{
#if defined(__x86_64__)
	__builtin_cpu_init();
	const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	const bool vaes = avx2 && __builtin_cpu_supports("vaes");
	const struct {
		const struct fc_step_variant *variant;
		bool here;
	} best_first[] = {
		{ &fc_step_avx512,
		  vaes && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") },
		{ &fc_step_vaes, vaes },
		{ &fc_step_avx2, avx2 && __builtin_cpu_supports("aes") },
	};

	for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++)
		if (best_first[i].here && (!name || !strcmp(name, best_first[i].variant->name))) {
			chosen = best_first[i].variant;
			return 0;
		}
#endif
	if (name && strcmp(name, fc_step_plain.name))
		return -1;
	chosen = &fc_step_plain;
	return 0;
}

const struct fc_step_variant *fc_step_chosen(void)
{
	return chosen;
}

const char *fc_step_name(void)
{
	return chosen->name;
}

__attribute__((constructor)) static void choose(void)
{
	fc_digest_prepare();
	if (fc_step_choose(getenv("FLOWCHECK_STEP")))
		fc_step_choose(NULL);
}
