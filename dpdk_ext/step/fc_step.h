/* One optimizer step over flat state, out of place, in one pass: reads the committed copy and the
 * gradient, writes the new copy past the caches, and sums the digests of what it writes. Read by
 * the compiler and by cffi.
 *
 * The arithmetic is that of torch's for-loop on a CPU, or of its CUDA kernels; the order and rounding
 * of every operation is in fc_step_kernels.h and fc_step_cuda.h. */
#ifndef FC_STEP_H
#define FC_STEP_H

#include <stddef.h>
#include <stdint.h>

enum {
	FC_STEP_SECTIONS_MAX = 4, /* parameters and at most three states */
	FC_STEP_DIGEST_BYTES = 16,
};

enum fc_step_rule {
	FC_STEP_COPY = 0,     /* left out of this step: nothing changes */
	FC_STEP_SGD = 1,      /* sections: parameters */
	FC_STEP_MOMENTUM = 2, /* parameters, momentum_buffer */
	FC_STEP_ADAM = 3,     /* parameters, exp_avg, exp_avg_sq; AdamW too */
	FC_STEP_AMSGRAD = 4,  /* the same, and max_exp_avg_sq */
};

enum fc_step_flag {
	FC_STEP_DIVIDE = 1,           /* gradient / divisor, before all else */
	FC_STEP_SCALE = 2,            /* gradient * scale: clipping */
	FC_STEP_NEGATE = 4,           /* maximize */
	FC_STEP_DECAY_GRADIENT = 8,   /* gradient + weight_decay * parameter */
	FC_STEP_DECAY_PARAMETER = 16, /* parameter * decay: AdamW */
	FC_STEP_FIRST = 32,           /* the momentum buffer becomes the gradient */
	FC_STEP_NESTEROV = 64,
	FC_STEP_CUDA = 128,       /* Adam as CUDA's foreach kernels round it */
	FC_STEP_RECIPROCAL = 256, /* and its for-loop: bias2_root is one over it */
	FC_STEP_FUSED = 512,      /* Adam as CUDA's fused kernel rounds it, of torch 2.11 to 2.13 */
	FC_STEP_FUSED_WIDE = 1024, /* of torch 2.6 to 2.10: in doubles, of `wide` */
	FC_STEP_LANES =
		2048, /* its gradient + weight_decay * parameter, which some elements round twice */
	FC_STEP_RAGGED =
		4096, /* and which do where the tensor's elements are no multiple of four */
};

/* Which square root: torch's on a CPU is that of the library it was built with. */
enum fc_step_root {
	FC_STEP_ROOT_EXACT = 0,  /* rounded correctly (IEEE 754) */
	FC_STEP_ROOT_NEWTON = 1, /* one Newton step on the CPU's estimate, without fma */
	FC_STEP_ROOT_FUSED = 2,  /* one with fma on the estimate of 14 bits that AVX-512 has */
};

/* What one tensor's elements go through. Each scalar is what torch makes of Python's double:
 * the nearest float32. */
struct fc_step_row {
	uint32_t rule;
	uint32_t flags;
	float divisor;
	float scale;
	float weight_decay;
	float decay; /* AdamW: 1 - lr * weight_decay; fused: -(lr * weight_decay) */
	float rate;  /* SGD: -lr; Adam: -(lr / bias_correction1); fused: without the sign */
	float momentum;
	float undamped;   /* 1 - dampening */
	float beta1_rest; /* 1 - beta1; fused: beta1 */
	float beta2;
	float beta2_rest; /* 1 - beta2 */
	float bias2_root; /* bias_correction2 ** 0.5 */
	float eps;
};

/* What CUDA's fused kernel of torch 2.6 to 2.10 keeps in double, for rows with FC_STEP_FUSED_WIDE. */
struct fc_step_wide {
	double decay; /* -(lr * weight_decay) */
	double weight_decay;
	double beta1;
	double beta1_rest;
	double beta2;
	double beta2_rest;
	double eps;
};

/* Elements of one tensor that have a digest of their own (a block of it). */
struct fc_step_item {
	uint64_t first; /* in the flat state */
	uint64_t elements;
	uint32_t row;
	uint32_t reserved;
};

struct fc_step_job {
	const struct fc_step_row *rows;
	const struct fc_step_wide *wide; /* [rows]; NULL where no row asks for it */
	const struct fc_step_item *items;
	const uint32_t *chosen; /* items to do, by number; NULL: all */
	uint64_t count;         /* of chosen, or of items */
	uint64_t next;          /* the first that no thread has taken */
	const float *gradient;  /* flat, as the parameters lie */
	const float *from[4];   /* FC_STEP_SECTIONS_MAX */
	float *to[4];
	uint8_t *digests; /* [item][section][16]; NULL: none are wanted */
	uint32_t sections;
	uint32_t root; /* enum fc_step_root */
};

/* Works until nobody has items left; several threads may, each calls it once. */
void fc_step_work(struct fc_step_job *job);

/* The digest of `bytes` bytes, FC_STEP_DIGEST_BYTES of it (fc_digest.h). */
void fc_step_digest(const uint8_t *data, uint64_t bytes, uint8_t *digest);

/* Whether this CPU has what a kind of enum fc_step_root begins with. */
int fc_step_root_runs(uint32_t root);

/* out[i] = the square root of values[i], of a kind of enum fc_step_root that runs here. */
void fc_step_roots(const float *values, float *out, uint64_t count, uint32_t root);

/* Chooses the variant that runs: "avx512", "vaes", "avx2", "plain"; NULL: the best this CPU has. Returns -1
 * where the CPU does not have it, and nothing has changed. Not while a step is taken. */
int fc_step_choose(const char *name);

/* The variant that runs. FLOWCHECK_STEP in the environment chooses a lesser one from the start. */
const char *fc_step_name(void);

#endif
