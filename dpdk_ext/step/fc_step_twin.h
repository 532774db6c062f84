/* What each instruction set brings, chosen at run time (fc_step.c). */
#ifndef FC_STEP_TWIN_H
#define FC_STEP_TWIN_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "fc_step.h"

/* Elements taken at once: what is read, made and digested of them stays in a core's first cache
 * (four sections of 2 KiB). A whole number of digest runs. */
#define FC_STEP_CHUNK 512u
#define FC_STEP_CHUNK_BYTES (FC_STEP_CHUNK * 4u)
/* Counts handed to a twin are multiples of this: no vector is wider. */
#define FC_STEP_PAD 16u

/* xxh3 takes 64 bytes at a time, and mixes what it has summed after 16 of those. */
#define FC_DIGEST_STRIPE 64u
#define FC_DIGEST_RUN 1024u
#define FC_DIGEST_SECRET 192u
#define FC_DIGEST_PRIME32_1 0x9E3779B1u

struct fc_step_twin {
	const char *name;
	/* One chunk, or less: a multiple of FC_STEP_PAD elements. */
	void (*take)(const struct fc_step_row *row, const struct fc_step_wide *wide,
		     float *const *to, const float *const *from, const float *gradient,
		     uint32_t count, uint32_t root);
	void (*roots)(const float *values, float *to, uint32_t count, uint32_t root);
	/* Whole runs of 1024 bytes into the eight sums; as many bytes go from `from` to `to`, past
	 * the caches, meanwhile: memory is written while the core counts. `to`: 64-byte aligned, or
	 * NULL. */
	void (*digest)(uint64_t *sums, const uint8_t *data, size_t runs, uint8_t *to,
		       const uint8_t *from);
};

extern const struct fc_step_twin fc_step_plain;
#if defined(__x86_64__)
extern const struct fc_step_twin fc_step_avx2, fc_step_avx512;
#endif

/* The secret of xxh3 without a seed (XXH3_kSecret of its specification). */
extern const uint8_t fc_digest_secret[FC_DIGEST_SECRET];

#endif
