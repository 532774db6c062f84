/* The arithmetic of torch's CUDA kernels for Adam and AdamW, on vectors of any width: included by
 * fc_step_kernels.h. SGD's rounds as on a CPU, in all of its kernels.
 *
 * Where multiplications and additions are contracted is nvcc's choice. It was read off the SASS of the
 * kernels in the libtorch_cuda.so that PyPI has for torch 2.6.0 and 2.13.0 (sm_90), and all but the
 * doubles measured on an NVIDIA H200 with torch 2.11.0+cu130 (scripts/gpu/arithmetic.py). Sources:
 *   foreach, and the for-loop      ForeachFunctors.cuh, DeviceAddCmulCdiv.cuh, Lerp.h
 *     lerp(x, y, w)                fma(w, y - x, x); from |w| = 0.5 on fma(w - 1, y - x, y)
 *     addcmul(x, y, z, a)          fma(a, y * z, x)
 *     addcdiv(x, y, z, a)          fma(a, y / z, x)
 *     x / number                   foreach: a division; for-loop: x * (1 / number), 1 / number of
 *                                  the double, then rounded (BinaryDivTrueKernel.cu,
 *                                  div_true_kernel_cuda)
 *   fused, torch 2.11 to 2.13      fused_adam_utils.cuh, adam_math: float32, std::fma as written;
 *                                  weight decay of Adam without amsgrad: decay_lanes
 *   fused, torch 2.6 to 2.10       the same, where numbers are double: every sum is one of doubles
 * Division and square root are IEEE's there (-prec-div, -prec-sqrt), and nothing is flushed to zero. */

/* Moments of the for-loop and foreach. */
FC_TARGET static void cuda_moments(const struct fc_step_row *row, float *const *to,
				   const float *const *from, const float *gradient, uint32_t count)
{
	const bool near = row->beta1_rest < 0.5f;
	const fc_v weight = v_all(near ? row->beta1_rest : row->beta1_rest - 1.0f);
	const fc_v beta2 = v_all(row->beta2), beta2_rest = v_all(row->beta2_rest);

	for (uint32_t i = 0; i < count; i += FC_LANES) {
		const fc_v g = v_load(gradient + i), m = v_load(from[1] + i);
		const fc_v v = v_mul(v_load(from[2] + i), beta2);
		v_store(to[1] + i, v_fma(weight, v_sub(g, m), near ? m : g));
		v_store(to[2] + i, v_fma(beta2_rest, v_mul(g, g), v));
	}
}

FC_TARGET static void fused_moments(const struct fc_step_row *row, float *const *to,
				    const float *const *from, const float *gradient, uint32_t count)
{
	const fc_v beta1 = v_all(row->beta1_rest), beta2 = v_all(row->beta2);
	const fc_v less1 = v_negate(beta1), less2 = v_negate(beta2);

	for (uint32_t i = 0; i < count; i += FC_LANES) {
		const fc_v g = v_load(gradient + i), square = v_mul(g, g);
		v_store(to[1] + i, v_fma(beta1, v_load(from[1] + i), v_fma(less1, g, g)));
		v_store(to[2] + i, v_fma(beta2, v_load(from[2] + i), v_fma(less2, square, square)));
	}
}

FC_TARGET static void wide_moments(const struct fc_step_wide *wide, float *const *to,
				   const float *const *from, const float *gradient, uint32_t count)
{
	const float *m0 = from[1], *v0 = from[2];
	float *m1 = to[1], *v1 = to[2];

	for (uint32_t i = 0; i < count; i++) {
		const double g = gradient[i];
		m1[i] = (float)fma(wide->beta1, m0[i], wide->beta1_rest * g);
		v1[i] = (float)fma(wide->beta2, v0[i], wide->beta2_rest * g * g);
	}
}

/* Adam's weight decay in doubles; the gradient may be the place it goes to. */
FC_TARGET static void decay_wide(const struct fc_step_wide *wide, float *to, const float *gradient,
				 const float *parameter, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		to[i] = (float)fma(wide->weight_decay, parameter[i], gradient[i]);
}

/* Elements that a block of 512 threads takes in a turn, four each. */
#define CUDA_BLOCK 512u
#define CUDA_TURN (4u * CUDA_BLOCK)

/* Adam's weight decay in float32 without amsgrad, which is no std::fma: nvcc contracts it for three of
 * the four elements that a thread has, and not for the first. Those lie side by side where a tensor's
 * elements are a multiple of four (FusedAdamMathFunctor: load_store), else a block apart (load_args).
 * Blocks of a tensor are multiples of CUDA_TURN, so that an item's elements are counted from 0. */
FC_TARGET static void decay_lanes(const struct fc_step_run *run, float *to, const float *gradient)
{
	const float weight_decay = run->row->weight_decay, *parameter = run->from[0];
	const bool ragged = run->row->flags & FC_STEP_RAGGED;

	for (uint32_t i = 0; i < run->count; i++) {
		const uint64_t at = run->at + i;
		const bool first = ragged ? at % CUDA_TURN < CUDA_BLOCK : at % 4 == 0;
		const float product = parameter[i] * weight_decay;
		to[i] = first ? gradient[i] + product
			      : fmaf(parameter[i], weight_decay, gradient[i]);
	}
}

/* sqrt(most) / bias2_root + eps. */
FC_TARGET static void cuda_below(const struct fc_step_row *row, const struct fc_step_wide *wide,
				 float *to, const float *most, uint32_t count)
{
	const fc_v bias2_root = v_all(row->bias2_root), eps = v_all(row->eps);
	const bool reciprocal = row->flags & FC_STEP_RECIPROCAL;
	const bool doubles = row->flags & FC_STEP_FUSED_WIDE;

	for (uint32_t i = 0; i < count; i += FC_LANES) {
		const fc_v root = v_sqrt(v_load(most + i));
		const fc_v over = reciprocal ? v_mul(root, bias2_root) : v_div(root, bias2_root);
		v_store(to + i, doubles ? over : v_add(over, eps));
	}
	for (uint32_t i = 0; doubles && i < count; i++)
		to[i] = (float)(to[i] + wide->eps);
}

FC_TARGET static void cuda_decayed(const struct fc_step_row *row, const struct fc_step_wide *wide,
				   float *to, const float *parameter, uint32_t count)
{
	const fc_v decay = v_all(row->decay);

	if (row->flags & FC_STEP_FUSED_WIDE) {
		for (uint32_t i = 0; i < count; i++)
			to[i] = (float)fma(wide->decay, parameter[i], parameter[i]);
		return;
	}
	for (uint32_t i = 0; i < count; i += FC_LANES) {
		const fc_v p = v_load(parameter + i);
		v_store(to + i, row->flags & FC_STEP_FUSED ? v_fma(decay, p, p) : v_mul(p, decay));
	}
}

FC_TARGET static void cuda_adam(const struct fc_step_row *row, const struct fc_step_wide *wide,
				float *const *to, const float *const *from, const float *gradient,
				uint32_t count)
{
	const fc_v rate = v_all(row->rate);
	const bool fused = row->flags & (FC_STEP_FUSED | FC_STEP_FUSED_WIDE);
	float under[FC_RUN] __attribute__((aligned(64)));
	float decayed[FC_RUN] __attribute__((aligned(64)));
	const float *most = to[2], *p0 = from[0];

	if (row->flags & FC_STEP_FUSED_WIDE)
		wide_moments(wide, to, from, gradient, count);
	else if (row->flags & FC_STEP_FUSED)
		fused_moments(row, to, from, gradient, count);
	else
		cuda_moments(row, to, from, gradient, count);
	if (row->rule == FC_STEP_AMSGRAD) {
		for (uint32_t i = 0; i < count; i += FC_LANES)
			v_store(to[3] + i, v_maximum(v_load(from[3] + i), v_load(to[2] + i)));
		most = to[3];
	}
	cuda_below(row, wide, under, most, count);
	if (row->flags & FC_STEP_DECAY_PARAMETER) {
		cuda_decayed(row, wide, decayed, p0, count);
		p0 = decayed;
	}
	for (uint32_t i = 0; i < count; i += FC_LANES) {
		const fc_v m = v_load(to[1] + i), below = v_load(under + i), p = v_load(p0 + i);
		v_store(to[0] + i, fused ? v_sub(p, v_div(v_mul(rate, m), below))
					 : v_fma(rate, v_div(m, below), p));
	}
}
