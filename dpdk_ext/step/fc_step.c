#include "fc_step.h"

#include <stdlib.h>
#include <string.h>

#include "fc_copy.h"
#include "fc_digest.h"
#include "fc_step_twin.h"

static const struct fc_step_twin *chosen = &fc_step_plain;

#define LINE 64u

/* What was made and not written yet: whole cache lines go out past the caches, the rest stays for
 * the lines that follow. */
struct out {
	uint8_t *at; /* where bytes[0] belongs */
	uint32_t kept;
	uint8_t bytes[LINE + FC_STEP_CHUNK_BYTES] __attribute__((aligned(64)));
};

static void send(struct out *out, uint32_t added, struct fc_digest *digest)
{
	const uint8_t *made = out->bytes + out->kept;
	const uint32_t held = out->kept + added;
	const uint32_t odd = (uint32_t)((uintptr_t)out->at % LINE);
	uint32_t from = 0, sent = 0;

	if (odd) { /* the item's first line, which it shares with what lies before */
		from = LINE - odd < held ? LINE - odd : held;
		memcpy(out->at, out->bytes, from);
	}
	const uint32_t lines = (held - from) / LINE * LINE;
	if (digest)
		sent = (uint32_t)fc_digest_add(digest, chosen, made, added,
					       lines >= added ? out->at + from : NULL,
					       out->bytes + from);
	fc_copy_stream(out->at + from + sent, out->bytes + from + sent, lines - sent);
	out->at += from + lines;
	out->kept = held - from - lines;
	memmove(out->bytes, out->bytes + from + lines, out->kept);
}

struct work {
	struct out out[FC_STEP_SECTIONS_MAX];
	struct fc_digest digest[FC_STEP_SECTIONS_MAX];
	/* A ragged end, filled up to FC_STEP_PAD. */
	float padded[FC_STEP_SECTIONS_MAX + 1][FC_STEP_CHUNK];
};

/* Vectors read and write whole: what is read beyond an item's end are zeros of ours, and what is
 * made of them is not written. */
static void take_chunk(struct work *work, const struct fc_step_job *job, uint32_t number,
		       uint64_t first, uint32_t count)
{
	const struct fc_step_row *row = &job->rows[number];
	const struct fc_step_wide *wide = job->wide ? &job->wide[number] : NULL;
	const float *from[FC_STEP_SECTIONS_MAX], *gradient = job->gradient + first;
	float *to[FC_STEP_SECTIONS_MAX];
	const uint32_t padded = (count + FC_STEP_PAD - 1) / FC_STEP_PAD * FC_STEP_PAD;

	for (uint32_t s = 0; s < job->sections; s++) {
		from[s] = job->from[s] + first;
		to[s] = (float *)(work->out[s].bytes + work->out[s].kept);
	}
	if (row->rule == FC_STEP_COPY) {
		for (uint32_t s = 0; s < job->sections; s++)
			memcpy(to[s], from[s], count * sizeof(float));
		return;
	}
	if (padded != count) {
		memset(work->padded, 0, sizeof work->padded);
		for (uint32_t s = 0; s < job->sections; s++) {
			memcpy(work->padded[s], from[s], count * sizeof(float));
			from[s] = work->padded[s];
		}
		float *last = work->padded[FC_STEP_SECTIONS_MAX];
		memcpy(last, gradient, count * sizeof(float));
		gradient = last;
	}
	chosen->take(row, wide, to, from, gradient, padded, job->root);
}

/* The second half of what the next chunk reads of a section (see fetch_ahead in fc_step_kernels.h):
 * it comes while this one is digested. */
static void fetch_half(const float *next)
{
	for (uint32_t i = FC_STEP_CHUNK / 2; i < FC_STEP_CHUNK; i += LINE / sizeof(float))
		__builtin_prefetch(next + i);
}

static void take_item(struct work *work, const struct fc_step_job *job, uint64_t number)
{
	const struct fc_step_item *item = &job->items[number];
	const uint64_t bytes = item->elements * sizeof(float);
	const bool digested = job->digests && bytes > FC_DIGEST_SHORT_MAX;

	for (uint32_t s = 0; s < job->sections; s++) {
		work->out[s].at = (uint8_t *)(job->to[s] + item->first);
		work->out[s].kept = 0;
		fc_digest_begin(&work->digest[s], bytes);
	}
	for (uint64_t done = 0; done < item->elements;) {
		const uint64_t left = item->elements - done;
		const uint32_t count = left < FC_STEP_CHUNK ? (uint32_t)left : FC_STEP_CHUNK;
		take_chunk(work, job, item->row, item->first + done, count);
		for (uint32_t s = 0; s < job->sections; s++) {
			const uint32_t made = count * (uint32_t)sizeof(float);
			fetch_half(job->from[s] + item->first + done + count);
			send(&work->out[s], made, digested ? &work->digest[s] : NULL);
		}
		done += count;
	}
	for (uint32_t s = 0; s < job->sections; s++) {
		struct out *out = &work->out[s];
		memcpy(out->at, out->bytes, out->kept);
		if (digested)
			fc_digest_end(&work->digest[s], job->digests + (number * job->sections +
									s) * FC_STEP_DIGEST_BYTES);
	}
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

uint32_t fc_step_digest_least(void)
{
	return FC_DIGEST_SHORT_MAX;
}

void fc_step_digest(const uint8_t *data, uint64_t bytes, uint8_t *out)
{
	struct fc_digest digest;

	fc_digest_begin(&digest, bytes);
	fc_digest_add(&digest, chosen, data, bytes, NULL, NULL);
	fc_digest_end(&digest, out);
}

void fc_step_roots(const float *values, float *out, uint64_t count, uint32_t root)
{
	float padded[FC_STEP_PAD] = { 0 }, ends[FC_STEP_PAD];
	const uint32_t rest = (uint32_t)(count % FC_STEP_PAD);

	for (uint64_t done = 0; done + FC_STEP_PAD <= count; done += FC_STEP_PAD)
		chosen->roots(values + done, out + done, FC_STEP_PAD, root);
	memcpy(padded, values + count - rest, rest * sizeof(float));
	chosen->roots(padded, ends, FC_STEP_PAD, root);
	memcpy(out + count - rest, ends, rest * sizeof(float));
}

int fc_step_choose(const char *name)
{
#if defined(__x86_64__)
	__builtin_cpu_init();
	const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	const bool avx512 =
		avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");

	if (avx512 && (!name || !strcmp(name, fc_step_avx512.name))) {
		chosen = &fc_step_avx512;
		return 0;
	}
	if (avx2 && (!name || !strcmp(name, fc_step_avx2.name))) {
		chosen = &fc_step_avx2;
		return 0;
	}
#endif
	if (name && strcmp(name, fc_step_plain.name))
		return -1;
	chosen = &fc_step_plain;
	return 0;
}

const char *fc_step_name(void)
{
	return chosen->name;
}

__attribute__((constructor)) static void choose(void)
{
	if (fc_step_choose(getenv("FLOWCHECK_STEP")))
		fc_step_choose(NULL);
}
