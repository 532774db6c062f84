/* What each instruction set brings, chosen at run time (fc_step.c). */
#ifndef FC_STEP_TWIN_H
#define FC_STEP_TWIN_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fc_step.h"

/* A cache line, which is one stripe of xxh3 and no less than any vector. */
#define FC_LINE 64u
#define FC_LINE_ELEMENTS (FC_LINE / 4u)
/* Elements taken at once: xxh3 mixes what it has summed after that many lines. What is made of them
 * stays in a core's first cache. */
#define FC_RUN_LINES 16u
#define FC_RUN (FC_RUN_LINES * FC_LINE_ELEMENTS)
#define FC_RUN_BYTES (FC_RUN_LINES * FC_LINE)

#define FC_DIGEST_SECRET 192u
#define FC_DIGEST_PRIME32_1 0x9E3779B1u

/* A run of one section that was made: it goes out while the next one is made, so that memory is
 * written and digests are summed while the core computes. */
struct fc_step_sent {
	uint64_t *sums; /* of xxh3, 8 */
	const uint8_t *made;
	uint8_t *to;          /* whole cache lines of the new copy */
	const uint8_t *lines; /* what goes there: `made`, shifted by how the lines lie */
};

/* The least a page has. */
#define FC_PAGE_BYTES 4096u

/* The first store past the caches to a page waits for the page's translation: a line of the next one
 * is asked for early. Pairs of a step with and without it: 1.06 to 1.10 times as fast. */
static inline void translate_ahead(const void *at)
{
	if ((uintptr_t)at % FC_PAGE_BYTES < FC_RUN_BYTES)
		__builtin_prefetch((const uint8_t *)at + FC_PAGE_BYTES, 0, 2);
}

struct fc_step_run {
	const struct fc_step_row *row;
	const struct fc_step_wide *wide;
	const float *gradient;
	const float *from[FC_STEP_SECTIONS_MAX];
	float *to[FC_STEP_SECTIONS_MAX]; /* none overlaps another, nor what is sent */
	uint32_t sections;
	uint32_t root;
	uint32_t count; /* of elements: FC_RUN, or fewer whole lines where nothing is sent */
	bool sends;
	struct fc_step_sent sent[FC_STEP_SECTIONS_MAX];
};

struct fc_step_twin {
	const char *name;
	void (*take)(const struct fc_step_run *run);
	/* A run of which nothing else is made meanwhile. */
	void (*send)(const struct fc_step_sent *sent);
	void (*digest)(uint64_t *sums, const uint8_t *data, size_t runs);
	/* `count`: whole lines. */
	void (*roots)(const float *values, float *to, uint32_t count, uint32_t root);
	/* `runs` whole runs of Adam or AdamW from `run` on, whose `to` are whole lines of the new copy
	 * that are written past the caches; sums: of parameters and both moments. NULL: not here. */
	void (*flow)(const struct fc_step_run *run, uint64_t runs, uint64_t *const sums[3]);
};

extern const struct fc_step_twin fc_step_plain;
#if defined(__x86_64__)
extern const struct fc_step_twin fc_step_avx2, fc_step_avx512;
#endif

/* The secret of xxh3 without a seed (XXH3_kSecret of its specification), as one line reads it: the
 * n-th of a run begins at byte 8 n, the mixing after the last one at FC_DIGEST_MIX. */
extern const uint8_t fc_digest_secret[FC_DIGEST_SECRET];
#define FC_DIGEST_MIX (FC_DIGEST_SECRET - FC_LINE)

#endif
