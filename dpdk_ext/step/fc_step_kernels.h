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
#include <string.h>

#include "fc_step_variant.h"
/* The variant comes first. */
#include "fc_step_write_out.h"

/* What the next run reads comes while this one is made: beyond an item's end nothing is asked for
 * that faults. */
FC_INLINE void fetch_ahead(const float *line)
{
	__builtin_prefetch(line + FC_RUN);
}

/* One Newton step, s + s (1/2 - s h) and then s + h (x - s s) with h = e / 2, every operation rounded;
 * halving rounds nothing, so that it can be put off into the additions: the same bits for every
 * float32 (tried on all). Wrong where `v_note` notes it. */
FC_INLINE fc_v root_common(fc_v x)
{
	const fc_v half = v_all(0.5f), one = v_all(1.0f);
	const fc_v e = v_rsqrt(x), s = v_mul(x, e);
	const fc_v off = v_sub(one, v_mul(s, e));
	const fc_v root = v_fma(v_mul(s, off), half, s);
	const fc_v twice_h = v_fma(v_mul(e, off), half, e);

	return v_fma(v_mul(v_sub(x, v_mul(root, root)), twice_h), half, root);
}

/* s + h (x - s s) with h = e / 2 and fma: torch's bits on a CPU with AVX-512 of Intel's for every
 * float32 from ROOT_LEAST squared on (tried on all). */
FC_INLINE fc_v root_fused(fc_v x)
{
	const fc_v e = v_rsqrt14(x), s = v_mul(x, e);

	return v_fma(v_fnma(s, s, x), v_mul(e, v_all(0.5f)), s);
}

/* 2**-50, as bits. Below its square x - s s would be denormal: these roots are taken of 2**96 x. */
#define ROOT_LEAST 0x26800000u

FC_INLINE fc_v root_fused_any(fc_v x)
{
	const fc_v exact = v_sqrt(x);
	const fc_v small = v_mul(root_fused(v_mul(x, v_all(0x1p96f))), v_all(0x1p-48f));
	const fc_v root = v_where_less(x, v_all(0x1p-100f), small, root_fused(x));

	/* Zero, negative and NaN are less than no number; infinity is less than none. */
	return v_where_less(x, v_all(INFINITY), v_where_less(v_all(0.0f), x, root, exact), exact);
}

/* Of NEWTON, zero, denormal, infinite, NaN, negative, the last 4096 before infinity are exact. */
FC_INLINE fc_v root_of(fc_v x, uint32_t root)
{
	if (root == FC_STEP_ROOT_NEWTON)
		return v_mix_rare(x, root_common(x), v_sqrt(x));
	return root == FC_STEP_ROOT_FUSED ? root_fused_any(x) : v_sqrt(x);
}

/* What root_of gives for what is common. */
FC_INLINE fc_v root_mostly(fc_v x, uint32_t root)
{
	if (root == FC_STEP_ROOT_NEWTON)
		return root_common(x);
	return root == FC_STEP_ROOT_FUSED ? root_fused(x) : v_sqrt(x);
}

/* The least root that is not rare, as bits. */
FC_INLINE uint32_t least_of(uint32_t root)
{
	return root == FC_STEP_ROOT_FUSED ? ROOT_LEAST : 0;
}

FC_TARGET static void roots(const float *values, float *to, uint32_t count, uint32_t root)
{
	for (size_t i = 0; i < count; i += FC_LANES)
		v_store(to + i, root_of(v_load(values + i), root));
}

/* Roots of what is common, line by line as the rest of a step; all of them again where anything was
 * rare. */
FC_INLINE void roots_of_run(const float *values, float *to, const struct fc_step_run *run,
			    uint32_t root, struct sending *sending)
{
	const size_t count = run->count;
	fc_bits noted = v_none();

	for (size_t i = 0, line = 0; i < count; line++) {
		fetch_ahead(run->from[1] + i);
		fetch_ahead(run->from[2] + i);
		for (size_t end = i + FC_LINE_ELEMENTS; i < end; i += FC_LANES) {
			const fc_v x = v_load(values + i);
			const fc_v y = root_mostly(x, root);
			if (root != FC_STEP_ROOT_EXACT)
				noted = v_note(noted, x, y, least_of(root));
			v_store(to + i, y);
		}
		send_line(sending, line);
	}
	if (root != FC_STEP_ROOT_EXACT && v_noted(noted, least_of(root)))
		roots(values, to, run->count, root);
}

FC_TARGET static void squares(float *sums, const float *values, size_t count)
{
	for (size_t i = 0; i < count; i += FC_LANES) {
		const fc_v x = v_load(values + i);
		v_store(sums + i, v_fma(x, x, v_load(sums + i)));
	}
}

/* What the step sees as gradient, [count]; with FC_STEP_LANES without its decay. */
FC_TARGET static void prepare(const struct fc_step_row *row, float *to, const float *gradient,
			      const float *parameter, uint32_t count)
{
	const fc_v divisor = v_all(row->divisor), scale = v_all(row->scale);
	const fc_v weight_decay = v_all(row->weight_decay);
	const bool decays = row->flags & FC_STEP_DECAY_GRADIENT && !(row->flags & FC_STEP_LANES);

	for (size_t i = 0; i < count; i += FC_LANES) {
		fc_v g = v_load(gradient + i);
		if (row->flags & FC_STEP_DIVIDE)
			g = v_div(g, divisor);
		if (row->flags & FC_STEP_SCALE)
			g = v_mul(g, scale);
		if (row->flags & FC_STEP_NEGATE)
			g = v_negate(g);
		if (decays)
			g = v_fma(v_load(parameter + i), weight_decay, g);
		v_store(to + i, g);
	}
}

FC_TARGET static void sgd(const struct fc_step_run *run, const float *gradient)
{
	const size_t count = run->count;
	const fc_v rate = v_all(run->row->rate);
	const float *p = run->from[0];
	float *to = run->to[0];
	struct sending sending = send_begin(run, 0);

	for (size_t i = 0, line = 0; i < count; line++) {
		fetch_ahead(gradient + i);
		fetch_ahead(p + i);
		for (size_t end = i + FC_LINE_ELEMENTS; i < end; i += FC_LANES)
			v_store(to + i, v_fma(v_load(gradient + i), rate, v_load(p + i)));
		send_line(&sending, line);
	}
	send_end(&sending);
}

/* The buffers of a run, then its parameters. */
FC_TARGET static void momentum(const struct fc_step_run *run, const float *gradient)
{
	const size_t count = run->count;
	const struct fc_step_row *row = run->row;
	const fc_v rate = v_all(row->rate), by = v_all(row->momentum),
		   undamped = v_all(row->undamped);
	const bool first = row->flags & FC_STEP_FIRST, nesterov = row->flags & FC_STEP_NESTEROV;
	const float *p = run->from[0], *from = run->from[1];
	float *to = run->to[0], *buffer = run->to[1];
	struct sending sending = send_begin(run, 0);

	for (size_t i = 0, line = 0; i < count; line++) {
		fetch_ahead(gradient + i);
		fetch_ahead(from + i);
		for (size_t end = i + FC_LINE_ELEMENTS; i < end; i += FC_LANES) {
			const fc_v g = v_load(gradient + i);
			v_store(buffer + i,
				first ? g : v_fma(g, undamped, v_mul(v_load(from + i), by)));
		}
		send_line(&sending, line);
	}
	send_end(&sending);
	sending = send_begin(run, 1);
	for (size_t i = 0, line = 0; i < count; line++) {
		fetch_ahead(p + i);
		for (size_t end = i + FC_LINE_ELEMENTS; i < end; i += FC_LANES) {
			const fc_v b = v_load(buffer + i);
			const fc_v along = nesterov ? v_fma(b, by, v_load(gradient + i)) : b;
			v_store(to + i, v_fma(along, rate, v_load(p + i)));
		}
		send_line(&sending, line);
	}
	send_end(&sending);
}

/* `near`: |1 - beta1| < 0.5. */
FC_INLINE void moments(const struct fc_step_run *run, const float *gradient, bool near)
{
	const size_t count = run->count;
	const struct fc_step_row *row = run->row;
	const fc_v weight = v_all(near ? row->beta1_rest : row->beta1_rest - 1.0f);
	const fc_v beta2 = v_all(row->beta2), beta2_rest = v_all(row->beta2_rest);
	const float *m0 = run->from[1], *v0 = run->from[2];
	float *m1 = run->to[1], *v1 = run->to[2];
	struct sending sending = send_begin(run, 0);

	for (size_t i = 0, line = 0; i < count; line++) {
		fetch_ahead(gradient + i);
		for (size_t end = i + FC_LINE_ELEMENTS; i < end; i += FC_LANES) {
			const fc_v g = v_load(gradient + i), m = v_load(m0 + i);
			v_store(m1 + i, v_fma(weight, v_sub(g, m), near ? m : g));
			v_store(v1 + i,
				v_fma(v_mul(beta2_rest, g), g, v_mul(v_load(v0 + i), beta2)));
		}
		send_line(&sending, line);
	}
	send_end(&sending);
}

/* `root`: of every element's second moment, where the parameters will be. */
FC_INLINE void parameters(const struct fc_step_run *run, struct sending *sending)
{
	const size_t count = run->count;
	const struct fc_step_row *row = run->row;
	const fc_v bias2_root = v_all(row->bias2_root), eps = v_all(row->eps);
	const bool decays = row->flags & FC_STEP_DECAY_PARAMETER;
	const fc_v rate = v_all(row->rate), decay = v_all(decays ? row->decay : 1.0f);
	const float *p0 = run->from[0], *m1 = run->to[1];
	float *p1 = run->to[0];

	for (size_t i = 0, line = 0; i < count; line++) {
		fetch_ahead(p0 + i);
		for (size_t end = i + FC_LINE_ELEMENTS; i < end; i += FC_LANES) {
			const fc_v below = v_add(v_div(v_load(p1 + i), bias2_root), eps);
			const fc_v p = v_load(p0 + i), step = v_mul(rate, v_load(m1 + i));
			v_store(p1 + i, v_add(v_mul(p, decay), v_div(step, below)));
		}
		send_line(sending, line);
	}
}

/* Three loops and not one: what one element waits for is longer than what a core looks ahead. */
FC_INLINE void adam_of(const struct fc_step_run *run, const float *gradient, uint32_t root)
{
	const size_t count = run->count;
	const float *most = run->to[2];

	if (run->row->beta1_rest < 0.5f)
		moments(run, gradient, true);
	else
		moments(run, gradient, false);
	if (run->row->rule == FC_STEP_AMSGRAD) {
		for (size_t i = 0; i < count; i += FC_LANES)
			v_store(run->to[3] + i,
				v_maximum(v_load(run->from[3] + i), v_load(run->to[2] + i)));
		most = run->to[3];
	}
	struct sending sending = send_begin(run, 1);
	roots_of_run(most, run->to[0], run, root, &sending);
	send_end(&sending);
	sending = send_begin(run, 2);
	parameters(run, &sending);
	send_end(&sending);
}

FC_TARGET static void adam(const struct fc_step_run *run, const float *gradient)
{
	if (run->root == FC_STEP_ROOT_NEWTON)
		adam_of(run, gradient, FC_STEP_ROOT_NEWTON);
	else if (run->root == FC_STEP_ROOT_FUSED)
		adam_of(run, gradient, FC_STEP_ROOT_FUSED);
	else
		adam_of(run, gradient, FC_STEP_ROOT_EXACT);
}

#include "fc_step_cuda.h"

/* Makes a run by its rule; returns how many sections went out meanwhile. */
FC_TARGET static uint32_t make(const struct fc_step_run *run, const float *gradient)
{
	const uint32_t cuda = FC_STEP_CUDA | FC_STEP_FUSED | FC_STEP_FUSED_WIDE;

	switch (run->row->rule) {
	case FC_STEP_COPY:
		for (uint32_t s = 0; s < run->sections; s++)
			memcpy(run->to[s], run->from[s], run->count * sizeof(float));
		return 0;
	case FC_STEP_SGD:
		sgd(run, gradient);
		return 1;
	case FC_STEP_MOMENTUM:
		momentum(run, gradient);
		return 2;
	}
	if (run->row->flags & cuda) {
		cuda_adam(run->row, run->wide, run->to, run->from, gradient, run->count);
		return 0;
	}
	adam(run, gradient);
	return 3;
}

FC_TARGET static void take(const struct fc_step_run *run)
{
	const struct fc_step_row *row = run->row;
	const uint32_t changes =
		FC_STEP_DIVIDE | FC_STEP_SCALE | FC_STEP_NEGATE | FC_STEP_DECAY_GRADIENT;
	float prepared[FC_RUN] __attribute__((aligned(64)));
	const float *gradient = run->gradient;

	if (row->flags & changes) {
		prepare(row, prepared, gradient, run->from[0], run->count);
		gradient = prepared;
	}
	if (row->flags & FC_STEP_LANES) {
		decay_lanes(run, prepared, gradient);
		gradient = prepared;
	}
	if (row->flags & FC_STEP_FUSED_WIDE && run->wide->weight_decay != 0) {
		decay_wide(run->wide, prepared, gradient, run->from[0], run->count);
		gradient = prepared;
	}
	for (uint32_t s = make(run, gradient); run->sends && s < run->sections; s++)
		send(&run->sent[s]);
}
