/* Adam, AdamW over lines that lie in the new copy as they are made: what an element waits for is computed
 * for several vectors side by side, and is summed and sent out from registers. Included after
 * fc_step_kernels.h, whose arithmetic this is, operation by operation.
 *
 * A run's moments and roots are made beside the parameters of the run before: neither waits for the
 * other. Between the two lie only the roots and the first moments of one run. */

/* Vectors side by side: as many as keep the units busy while each waits for its own last operation,
 * and that 16 registers hold. */
#define FLOW_SIDE 4u
#define FLOW_ELEMENTS (FLOW_SIDE * FC_LANES)
#define FLOW_LINES (FLOW_ELEMENTS / FC_LINE_ELEMENTS)
#define FLOW_EACH _Pragma("GCC unroll 4") for (size_t k = 0; k < FLOW_SIDE; k++)
#define FLOW_EACH_LINE _Pragma("GCC unroll 4") for (size_t l = 0; l < FLOW_LINES; l++)

struct flow_by {
	fc_v weight, beta2, beta2_rest, bias2_root, eps, rate, decay;
};

/* Gradient, parameters and moments, and the new ones: by value, so that no store is taken for one to
 * where these are written down. */
struct flow_at {
	const float *g, *p, *m, *v;
	float *p1, *m1, *v1;
};

struct flow_sums {
	struct v_sums p, m, v;
};

struct flow_kept {
	float root[FC_RUN];
	float first[FC_RUN];
} __attribute__((aligned(64)));

FC_INLINE void flow_out(struct v_sums *sums, float *to, const fc_v *made)
{
	FLOW_EACH
	{
		sum_vector(sums, made[k]);
		stream_vector(to + k * FC_LANES, made[k]);
	}
}

/* root_fused, side by side. */
FC_INLINE void flow_roots_fused(float *to, const fc_v *x, fc_bits *noted)
{
	const fc_v half = v_all(0.5f);
	fc_v e[FLOW_SIDE], s[FLOW_SIDE], off[FLOW_SIDE];

	FLOW_EACH e[k] = v_rsqrt14(x[k]);
	FLOW_EACH s[k] = v_mul(x[k], e[k]);
	FLOW_EACH off[k] = v_fnma(s[k], s[k], x[k]);
	FLOW_EACH e[k] = v_mul(e[k], half);
	FLOW_EACH s[k] = v_fma(off[k], e[k], s[k]);
	FLOW_EACH *noted = v_note(*noted, x[k], s[k], ROOT_LEAST);
	FLOW_EACH v_store(to + k * FC_LANES, s[k]);
}

/* root_common, side by side, with 1 - s e halved once: halving rounds nothing. */
FC_INLINE void flow_roots(float *to, const fc_v *x, uint32_t kind, fc_bits *noted)
{
	const fc_v half = v_all(0.5f);
	fc_v e[FLOW_SIDE], s[FLOW_SIDE], off[FLOW_SIDE], root[FLOW_SIDE], twice_h[FLOW_SIDE];

	if (kind == FC_STEP_ROOT_EXACT) {
		FLOW_EACH v_store(to + k * FC_LANES, v_sqrt(x[k]));
		return;
	}
	if (kind == FC_STEP_ROOT_FUSED) {
		flow_roots_fused(to, x, noted);
		return;
	}
	FLOW_EACH e[k] = v_rsqrt(x[k]);
	FLOW_EACH s[k] = v_mul(x[k], e[k]);
	FLOW_EACH off[k] = v_mul(s[k], e[k]);
	FLOW_EACH off[k] = v_fnma(off[k], half, half);
	FLOW_EACH root[k] = v_mul(s[k], off[k]);
	FLOW_EACH root[k] = v_add(root[k], s[k]);
	FLOW_EACH twice_h[k] = v_mul(e[k], off[k]);
	FLOW_EACH twice_h[k] = v_add(twice_h[k], e[k]);
	FLOW_EACH s[k] = v_mul(root[k], root[k]);
	FLOW_EACH s[k] = v_sub(x[k], s[k]);
	FLOW_EACH s[k] = v_mul(s[k], twice_h[k]);
	FLOW_EACH root[k] = v_fma(s[k], half, root[k]);
	FLOW_EACH *noted = v_note(*noted, x[k], root[k], least_of(kind));
	FLOW_EACH v_store(to + k * FC_LANES, root[k]);
}

FC_INLINE fc_v flow_second(const struct flow_by *by, const float *gradient, const float *second)
{
	const fc_v g = v_load(gradient);

	return v_fma(v_mul(by->beta2_rest, g), g, v_mul(v_load(second), by->beta2));
}

/* The roots of a run where something is rare: made again of what it was made of. */
FC_TARGET __attribute__((noinline, cold)) static void flow_rare(const struct flow_by *by,
								const float *gradient,
								const float *second, float *root,
								uint32_t kind)
{
	for (size_t i = 0; i < FC_RUN; i += FC_LANES)
		v_store(root + i, root_of(flow_second(by, gradient + i, second + i), kind));
}

FC_INLINE void flow_moments(const struct flow_by *by, bool near, uint32_t root, struct flow_at at,
			    size_t i, float *first, float *roots, struct flow_sums *sums,
			    fc_bits *noted)
{
	fc_v m1[FLOW_SIDE], v1[FLOW_SIDE];

	FLOW_EACH
	{
		const size_t here = i + k * FC_LANES;
		const fc_v g = v_load(at.g + here), m = v_load(at.m + here);
		m1[k] = v_fma(by->weight, v_sub(g, m), near ? m : g);
		v1[k] = flow_second(by, at.g + here, at.v + here);
		v_store(first + k * FC_LANES, m1[k]);
	}
	flow_out(&sums->m, at.m1 + i, m1);
	flow_out(&sums->v, at.v1 + i, v1);
	flow_roots(roots, v1, root, noted);
}

FC_INLINE void flow_parameters(const struct flow_by *by, struct flow_at at, size_t i,
			       const float *first, const float *root, struct flow_sums *sums)
{
	fc_v below[FLOW_SIDE], p1[FLOW_SIDE];

	FLOW_EACH below[k] = v_div(v_load(root + k * FC_LANES), by->bias2_root);
	FLOW_EACH below[k] = v_add(below[k], by->eps);
	FLOW_EACH p1[k] = v_mul(by->rate, v_load(first + k * FC_LANES));
	FLOW_EACH p1[k] = v_div(p1[k], below[k]);
	FLOW_EACH below[k] = v_mul(v_load(at.p + i + k * FC_LANES), by->decay);
	FLOW_EACH p1[k] = v_add(below[k], p1[k]);
	flow_out(&sums->p, at.p1 + i, p1);
}

/* The run from element `from` on, where `makes`, and the parameters of the run before it, where
 * `ends`. Sums go round in registers. */
FC_INLINE struct flow_sums flow_run(const struct flow_by *by, bool near, uint32_t root,
				    struct flow_at at, size_t from, struct flow_kept *kept,
				    struct flow_sums sums, bool makes, bool ends)
{
	fc_bits noted = v_none();
	size_t in_run = 0;

	_Pragma("GCC unroll 1") do
	{
		const size_t i = from + in_run;
		FLOW_EACH_LINE
		{
			fetch_ahead(at.g + i + l * FC_LINE_ELEMENTS);
			fetch_ahead(at.m + i + l * FC_LINE_ELEMENTS);
			fetch_ahead(at.v + i + l * FC_LINE_ELEMENTS);
			fetch_ahead(at.p + i + l * FC_LINE_ELEMENTS - FC_RUN);
		}
		if (ends)
			flow_parameters(by, at, i - FC_RUN, kept->first + in_run,
					kept->root + in_run, &sums);
		if (makes)
			flow_moments(by, near, root, at, i, kept->first + in_run,
				     kept->root + in_run, &sums, &noted);
		in_run += FLOW_ELEMENTS;
	}
	while (in_run < FC_RUN)
		;
	if (makes && root != FC_STEP_ROOT_EXACT &&
	    __builtin_expect(v_noted(noted, least_of(root)), 0))
		flow_rare(by, at.g + from, at.v + from, kept->root, root);
	return sums;
}

FC_INLINE void flow_of(const struct fc_step_run *run, uint64_t runs, uint64_t *const sums_to[3],
		       bool near, uint32_t root)
{
	const struct fc_step_row *row = run->row;
	const bool decays = row->flags & FC_STEP_DECAY_PARAMETER;
	const struct flow_by by = {
		.weight = v_all(near ? row->beta1_rest : row->beta1_rest - 1.0f),
		.beta2 = v_all(row->beta2),
		.beta2_rest = v_all(row->beta2_rest),
		.bias2_root = v_all(row->bias2_root),
		.eps = v_all(row->eps),
		.rate = v_all(row->rate),
		.decay = v_all(decays ? row->decay : 1.0f),
	};
	const struct flow_at at = { run->gradient, run->from[0], run->from[1], run->from[2],
				    run->to[0],    run->to[1],   run->to[2] };
	const size_t end = runs * FC_RUN;
	struct flow_sums sums = { sums_of(sums_to[0]), sums_of(sums_to[1]), sums_of(sums_to[2]) };
	struct flow_kept kept;

	sums = flow_run(&by, near, root, at, 0, &kept, sums, true, false);
	for (size_t i = FC_RUN; i < end; i += FC_RUN) {
		translate_ahead(at.p1 + i);
		translate_ahead(at.m1 + i);
		translate_ahead(at.v1 + i);
		sums = flow_run(&by, near, root, at, i, &kept, sums, true, true);
	}
	sums = flow_run(&by, near, root, at, end, &kept, sums, false, true);
	keep_sums(&sums.p, sums_to[0]);
	keep_sums(&sums.m, sums_to[1]);
	keep_sums(&sums.v, sums_to[2]);
}

FC_TARGET static void flow(const struct fc_step_run *run, uint64_t runs, uint64_t *const sums[3])
{
	const bool near = run->row->beta1_rest < 0.5f;

	if (near && run->root == FC_STEP_ROOT_NEWTON)
		flow_of(run, runs, sums, true, FC_STEP_ROOT_NEWTON);
	else if (near && run->root == FC_STEP_ROOT_FUSED)
		flow_of(run, runs, sums, true, FC_STEP_ROOT_FUSED);
	else if (near)
		flow_of(run, runs, sums, true, FC_STEP_ROOT_EXACT);
	else
		flow_of(run, runs, sums, false, run->root);
}
