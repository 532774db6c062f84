/* 2-norms of gradients, summed in the order of torch's CUDA kernels: every thread of a block has four
 * sums, in each of which fma(x, x, sum) takes one element after the other. Read by the compiler and by
 * cffi.
 *
 * Foreach: torch._foreach_norm (ForeachReduceOp.cu, LpNormFunctor and lpnorm_cleanup; block_reduce.cuh):
 * a block for 65,536 elements. Alone: torch.linalg.vector_norm (Reduce.cuh, setReduceConfig,
 * input_vectorized_thread_reduce_impl, block_x_reduce, global_reduce): one or several blocks for a
 * tensor, whose turns alternate. Measured on an NVIDIA H200 with torch 2.11.0+cu130
 * (scripts/gpu/arithmetic.py). */
#ifndef FC_NORM_H
#define FC_NORM_H

#include <stdint.h>

/* How the sums of a block's threads become one. */
enum fc_norm_order {
	FC_NORM_FOREACH = 0, /* of 32 threads first, halving them; then of those sums likewise */
	FC_NORM_ALONE = 1,   /* halving them: since torch 2.10 */
	FC_NORM_ALONE_EARLIER = 2, /* down to 32, which are added as neighbours: before */
};

/* What one block sums. */
struct fc_norm_part {
	uint64_t first;   /* elements, in the flat values */
	uint64_t end;     /* past the last element of its turns */
	uint64_t stride;  /* from one of its turns to the next */
	uint32_t threads; /* a power of two, 512 at most; a turn has four elements for each */
	uint32_t beside;  /* 1: the four lie beside each other; 0: `threads` apart */
	uint32_t tail;    /* elements from `end` on, 3 at most, one for each of the first threads */
	uint32_t order;   /* enum fc_norm_order */
};

struct fc_norm_job {
	const float *values;
	const struct fc_norm_part *parts;
	float *sums;    /* [part] the sum of its squares */
	uint64_t count; /* of parts */
	uint64_t next;  /* the first that no thread has taken */
};

/* Works until nobody has parts left; several threads may, each calls it once. */
void fc_norm_work(struct fc_norm_job *job);

/* The root of the sum of [count] sums, which a block of `threads` threads adds. */
float fc_norm_root(const float *sums, uint64_t count, uint32_t threads, uint32_t order);

#endif
