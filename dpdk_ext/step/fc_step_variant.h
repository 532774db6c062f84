/* What each instruction set brings, chosen at run time (fc_step.c). */
#ifndef FC_STEP_VARIANT_H
#define FC_STEP_VARIANT_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fc_step.h"

/* A cache line, which is no less than any vector. */
#define FC_LINE 64u
#define FC_LINE_ELEMENTS (FC_LINE / 4u)
/* Elements taken at once: what is made of them stays in a core's first cache. */
#define FC_RUN_LINES 16u
#define FC_RUN (FC_RUN_LINES * FC_LINE_ELEMENTS)
#define FC_RUN_BYTES (FC_RUN_LINES * FC_LINE)

/* A run of one section that was made: it goes out while the next one is made, so that memory is
 * written and digests are summed while the core computes. */
struct fc_step_sent {
	uint64_t *sums; /* a digest's lanes */
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
	uint64_t at;    /* elements of the item before it, while every run is taken by `take` */
	bool sends;
	struct fc_step_sent sent[FC_STEP_SECTIONS_MAX];
};

struct fc_step_variant {
	const char *name;
	void (*take)(const struct fc_step_run *run);
	/* A run of which nothing else is made meanwhile. */
	void (*send)(const struct fc_step_sent *sent);
	void (*digest)(uint64_t *sums, const uint8_t *data, size_t pairs); /* FC_DIGEST_PAIR */
	/* `count`: whole lines. */
	void (*roots)(const float *values, float *to, uint32_t count, uint32_t root);
	/* sums[i] = fma(values[i], values[i], sums[i]); `count`: whole lines. */
	void (*squares)(float *sums, const float *values, size_t count);
	/* `runs` whole runs of Adam or AdamW from `run` on, whose `to` are whole lines of the new copy
	 * that are written past the caches; sums: of parameters and both moments. NULL: not here. */
	void (*flow)(const struct fc_step_run *run, uint64_t runs, uint64_t *const sums[3]);
};

/* The variant that runs (fc_step_choose). */
const struct fc_step_variant *fc_step_chosen(void);

extern const struct fc_step_variant fc_step_plain;
#if defined(__x86_64__)
extern const struct fc_step_variant fc_step_avx2, fc_step_vaes, fc_step_avx512;
#endif

#endif
