/* The arithmetic of torch's for-loop optimizers on a CPU, on vectors of any width: included once
 * for each instruction set, after its lanes (fc_lanes_*.h).
 *
 * From torch/optim/{sgd,adam}.py, _single_tensor_*, and torch's CPU kernels, whose vectors and
 * scalar ends round alike (checked on every operation and both ends):
 *   add(x, y, alpha)      fma(y, alpha, x)                      BinaryOpsKernel, add_clamp's kin
 *   lerp(x, y, w)         fma(w, y - x, x); from |w| = 0.5 on fma(w - 1, y - x, y)   LerpKernel
 *   addcmul(x, y, z, a)   fma(a * y, z, x)                      PointwiseOpsKernel
 *   addcdiv(x, y, z, a)   x + (a * y) / z                       PointwiseOpsKernel
 *   sqrt                  see root below                        vml.h: MKL's vmsSqrt
 * foreach runs the same operations tensor by tensor (_multi_tensor_*). NaN come where torch has
 * them; which one, where two meet, is a compiler's choice. */
#include "fc_step_twin.h"

FC_TARGET static inline fc_v root_newton(fc_v x)
{
	const fc_v half = v_all(0.5f);
	const fc_v estimate = v_rsqrt(x);
	fc_v s = v_mul(x, estimate), h = v_mul(estimate, half);
	const fc_v d = v_sub(half, v_mul(s, h));

	s = v_add(v_mul(s, d), s);
	h = v_add(v_mul(h, d), h);
	const fc_v y = v_add(v_mul(v_sub(x, v_mul(s, s)), h), s);
	/* Zero, denormal, infinite, NaN, negative, the last 4096 before infinity: exact. */
	return v_rare(x) ? v_mix_rare(x, y, v_sqrt(x)) : y;
}

FC_TARGET static inline fc_v root_of(fc_v x, uint32_t root)
{
	return root == FC_STEP_ROOT_NEWTON ? root_newton(x) : v_sqrt(x);
}

/* What the step sees as gradient, [count]. */
FC_TARGET static void prepare(const struct fc_step_row *row, float *to, const float *gradient,
			      const float *parameter, uint32_t count)
{
	const fc_v divisor = v_all(row->divisor), scale = v_all(row->scale);
	const fc_v weight_decay = v_all(row->weight_decay);

	for (uint32_t i = 0; i < count; i += FC_LANES) {
		fc_v g = v_load(gradient + i);
		if (row->flags & FC_STEP_DIVIDE)
			g = v_div(g, divisor);
		if (row->flags & FC_STEP_SCALE)
			g = v_mul(g, scale);
		if (row->flags & FC_STEP_NEGATE)
			g = v_negate(g);
		if (row->flags & FC_STEP_DECAY_GRADIENT)
			g = v_fma(v_load(parameter + i), weight_decay, g);
		v_store(to + i, g);
	}
}

FC_TARGET static void sgd(const struct fc_step_row *row, float *const *to, const float *const *from,
			  const float *gradient, uint32_t count)
{
	const fc_v rate = v_all(row->rate);

	for (uint32_t i = 0; i < count; i += FC_LANES)
		v_store(to[0] + i, v_fma(v_load(gradient + i), rate, v_load(from[0] + i)));
}

FC_TARGET static void momentum(const struct fc_step_row *row, float *const *to,
			       const float *const *from, const float *gradient, uint32_t count)
{
	const fc_v rate = v_all(row->rate), by = v_all(row->momentum),
		   undamped = v_all(row->undamped);
	const bool first = row->flags & FC_STEP_FIRST, nesterov = row->flags & FC_STEP_NESTEROV;

	for (uint32_t i = 0; i < count; i += FC_LANES) {
		const fc_v g = v_load(gradient + i);
		const fc_v buffer = first ? g : v_fma(g, undamped, v_mul(v_load(from[1] + i), by));
		const fc_v along = nesterov ? v_fma(buffer, by, g) : buffer;
		v_store(to[1] + i, buffer);
		v_store(to[0] + i, v_fma(along, rate, v_load(from[0] + i)));
	}
}

/* What the next chunk reads comes while this one is computed and digested, so that memory never
 * waits for either: all of its gradient and the first half of its state from here, the second half
 * beside the digests. Beyond an item's end nothing is asked for that faults. */
static inline void fetch_ahead(const float *gradient, const float *p, const float *m,
			       const float *v, uint32_t i)
{
	const uint32_t next = FC_STEP_CHUNK + i, half = FC_STEP_CHUNK + i / 2;

	__builtin_prefetch(gradient + next);
	__builtin_prefetch(gradient + next + 16);
	__builtin_prefetch(p + half);
	__builtin_prefetch(m + half);
	__builtin_prefetch(v + half);
}

FC_TARGET static inline void adam_of(const struct fc_step_row *row, float *const *to,
				     const float *const *from, const float *gradient,
				     uint32_t count, uint32_t root, bool amsgrad)
{
	const bool near = row->beta1_rest < 0.5f;
	const fc_v weight = v_all(near ? row->beta1_rest : row->beta1_rest - 1.0f);
	const fc_v beta2 = v_all(row->beta2), beta2_rest = v_all(row->beta2_rest);
	const fc_v bias2_root = v_all(row->bias2_root), eps = v_all(row->eps);
	const fc_v rate = v_all(row->rate), decay = v_all(row->decay);
	const bool decays = row->flags & FC_STEP_DECAY_PARAMETER;
	float *m1 = to[1], *v1 = to[2], *p1 = to[0], *most1 = to[3];
	const float *m0 = from[1], *v0 = from[2], *p0 = from[0], *most0 = from[3];

	for (uint32_t i = 0; i < count; i += FC_LANES) {
		if (i % 32 == 0)
			fetch_ahead(gradient, p0, m0, v0, i);
		const fc_v g = v_load(gradient + i), m = v_load(m0 + i);
		const fc_v m_new = v_fma(weight, v_sub(g, m), near ? m : g);
		const fc_v v_new = v_fma(v_mul(beta2_rest, g), g, v_mul(v_load(v0 + i), beta2));
		fc_v most = v_new;
		v_store(m1 + i, m_new);
		v_store(v1 + i, v_new);
		if (amsgrad) {
			most = v_maximum(v_load(most0 + i), v_new);
			v_store(most1 + i, most);
		}
		const fc_v below = v_add(v_div(root_of(most, root), bias2_root), eps);
		const fc_v p = v_load(p0 + i);
		v_store(p1 + i,
			v_add(decays ? v_mul(p, decay) : p, v_div(v_mul(rate, m_new), below)));
	}
}

#include "fc_step_cuda.h"

FC_TARGET static void adam(const struct fc_step_row *row, float *const *to,
			   const float *const *from, const float *gradient, uint32_t count,
			   uint32_t root)
{
	const bool amsgrad = row->rule == FC_STEP_AMSGRAD;

	if (root == FC_STEP_ROOT_NEWTON)
		adam_of(row, to, from, gradient, count, FC_STEP_ROOT_NEWTON, amsgrad);
	else
		adam_of(row, to, from, gradient, count, FC_STEP_ROOT_EXACT, amsgrad);
}

/* `count` elements, a multiple of FC_STEP_PAD; none of the arrays overlap. */
FC_TARGET static void take(const struct fc_step_row *row, const struct fc_step_wide *wide,
			   float *const *to, const float *const *from, const float *gradient,
			   uint32_t count, uint32_t root)
{
	const uint32_t changes =
		FC_STEP_DIVIDE | FC_STEP_SCALE | FC_STEP_NEGATE | FC_STEP_DECAY_GRADIENT;
	float prepared[FC_STEP_CHUNK] __attribute__((aligned(64)));

	if (row->flags & changes) {
		prepare(row, prepared, gradient, from[0], count);
		gradient = prepared;
	}
	if (row->flags & FC_STEP_FUSED_WIDE && wide->weight_decay != 0) {
		decay_wide(wide, prepared, gradient, from[0], count);
		gradient = prepared;
	}
	if (row->rule == FC_STEP_SGD)
		sgd(row, to, from, gradient, count);
	else if (row->rule == FC_STEP_MOMENTUM)
		momentum(row, to, from, gradient, count);
	else if (row->flags & (FC_STEP_CUDA | FC_STEP_FUSED | FC_STEP_FUSED_WIDE))
		cuda_adam(row, wide, to, from, gradient, count);
	else
		adam(row, to, from, gradient, count, root);
}

FC_TARGET static void roots(const float *values, float *to, uint32_t count, uint32_t root)
{
	for (uint32_t i = 0; i < count; i += FC_LANES)
		v_store(to + i, root_of(v_load(values + i), root));
}
