/* Adam, AdamW over lines that lie in the new copy as they are made: what an element waits for is computed
 * for several vectors side by side, and is summed and sent out from registers. Included after
 * fc_step_kernels.h, whose arithmetic this is, operation by operation.
 *
 * A run's moments and roots are made beside the parameters of the run before: neither waits for the
 * other. Between the two lie only the roots and the first moments of one run. */

/* Vectors side by side: as many as keep the units busy while each waits for its own last operation,
 * and that 16 registers hold. */
#define FLOW_SIDE 4u
#define FLOW_LINES (FLOW_SIDE * FC_LANES / FC_LINE_ELEMENTS)
#define FLOW_LINE_VECTORS (FC_LINE_ELEMENTS / FC_LANES)
#define FLOW_EACH _Pragma("GCC unroll 4") for (size_t k = 0; k < FLOW_SIDE; k++)
#define FLOW_EACH_LINE _Pragma("GCC unroll 4") for (size_t l = 0; l < FLOW_LINES; l++)

struct flow_by {
	fc_v weight, beta2, beta2_rest, bias2_root, eps, rate, decay;
};

struct flow_kept {
	float root[FC_RUN];
	float first[FC_RUN];
} __attribute__((aligned(64)));

struct flow_sums {
	struct v_sums of[3];
};

/* Lines `number` and on of a run. */
FC_INLINE void flow_out(struct v_sums *sums, float *to, const fc_v *made, size_t number)
{
	FLOW_EACH_LINE
	{
		const struct v_line line = line_of(made + l * FLOW_LINE_VECTORS);
		sum_line(sums, line, number + l);
		stream_line((uint8_t *)(to + l * FC_LINE_ELEMENTS), line);
	}
}

/* root_common, side by side. */
FC_INLINE void flow_roots(float *to, const fc_v *x, uint32_t kind)
{
	const fc_v half = v_all(0.5f), one = v_all(1.0f);
	fc_v e[FLOW_SIDE], s[FLOW_SIDE], off[FLOW_SIDE], root[FLOW_SIDE], twice_h[FLOW_SIDE];
	fc_bits noted = v_none();

	if (kind != FC_STEP_ROOT_NEWTON) {
		FLOW_EACH v_store(to + k * FC_LANES, v_sqrt(x[k]));
		return;
	}
	FLOW_EACH e[k] = v_rsqrt(x[k]);
	FLOW_EACH s[k] = v_mul(x[k], e[k]);
	FLOW_EACH off[k] = v_mul(s[k], e[k]);
	FLOW_EACH off[k] = v_sub(one, off[k]);
	FLOW_EACH root[k] = v_mul(s[k], off[k]);
	FLOW_EACH root[k] = v_fma(root[k], half, s[k]);
	FLOW_EACH twice_h[k] = v_mul(e[k], off[k]);
	FLOW_EACH twice_h[k] = v_fma(twice_h[k], half, e[k]);
	FLOW_EACH s[k] = v_mul(root[k], root[k]);
	FLOW_EACH s[k] = v_sub(x[k], s[k]);
	FLOW_EACH s[k] = v_mul(s[k], twice_h[k]);
	FLOW_EACH root[k] = v_fma(s[k], half, root[k]);
	FLOW_EACH noted = v_note(noted, x[k], root[k]);
	FLOW_EACH v_store(to + k * FC_LANES, root[k]);
	if (__builtin_expect(v_noted(noted), 0))
		FLOW_EACH v_store(to + k * FC_LANES, root_of(x[k], kind));
}

FC_INLINE void flow_moments(const struct flow_by *by, bool near, uint32_t root,
			    const struct fc_step_run *run, size_t at, struct flow_kept *kept,
			    struct flow_sums *sums, size_t number)
{
	const size_t in_run = number * FC_LINE_ELEMENTS;
	fc_v m1[FLOW_SIDE], v1[FLOW_SIDE];

	FLOW_EACH
	{
		const size_t i = at + k * FC_LANES;
		const fc_v g = v_load(run->gradient + i), m = v_load(run->from[1] + i);
		m1[k] = v_fma(by->weight, v_sub(g, m), near ? m : g);
		v1[k] = v_fma(v_mul(by->beta2_rest, g), g,
			      v_mul(v_load(run->from[2] + i), by->beta2));
		v_store(kept->first + in_run + k * FC_LANES, m1[k]);
	}
	flow_out(&sums->of[1], run->to[1] + at, m1, number);
	flow_out(&sums->of[2], run->to[2] + at, v1, number);
	flow_roots(kept->root + in_run, v1, root);
}

FC_INLINE void flow_parameters(const struct flow_by *by, const struct fc_step_run *run, size_t at,
			       const struct flow_kept *kept, struct flow_sums *sums, size_t number)
{
	const float *root = kept->root + number * FC_LINE_ELEMENTS;
	const float *first = kept->first + number * FC_LINE_ELEMENTS;
	fc_v below[FLOW_SIDE], p1[FLOW_SIDE];

	FLOW_EACH below[k] = v_div(v_load(root + k * FC_LANES), by->bias2_root);
	FLOW_EACH below[k] = v_add(below[k], by->eps);
	FLOW_EACH p1[k] = v_mul(by->rate, v_load(first + k * FC_LANES));
	FLOW_EACH p1[k] = v_div(p1[k], below[k]);
	FLOW_EACH below[k] = v_mul(v_load(run->from[0] + at + k * FC_LANES), by->decay);
	FLOW_EACH p1[k] = v_add(below[k], p1[k]);
	flow_out(&sums->of[0], run->to[0] + at, p1, number);
}

/* The run at `at`, where `makes`, and the parameters of the run before it, where `ends`. */
FC_INLINE void flow_run(const struct flow_by *by, bool near, uint32_t root,
			const struct fc_step_run *run, size_t at, struct flow_kept *kept,
			uint64_t *const sums_to[3], bool makes, bool ends)
{
	struct flow_sums sums = { { sums_of(sums_to[0]), sums_of(sums_to[1]),
				    sums_of(sums_to[2]) } };
	size_t number = 0;

	_Pragma("GCC unroll 1") do
	{
		const size_t i = at + number * FC_LINE_ELEMENTS;
		FLOW_EACH_LINE
		{
			fetch_ahead(run->gradient + i + l * FC_LINE_ELEMENTS);
			fetch_ahead(run->from[1] + i + l * FC_LINE_ELEMENTS);
			fetch_ahead(run->from[2] + i + l * FC_LINE_ELEMENTS);
			fetch_ahead(run->from[0] + i + l * FC_LINE_ELEMENTS - FC_RUN);
		}
		if (ends)
			flow_parameters(by, run, i - FC_RUN, kept, &sums, number);
		if (makes)
			flow_moments(by, near, root, run, i, kept, &sums, number);
		number += FLOW_LINES;
	}
	while (number < FC_RUN_LINES)
		;
	for (size_t s = ends ? 0 : 1; s < (makes ? 3 : 1); s++)
		mix_sums(&sums.of[s], sums_to[s]);
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
	const size_t end = runs * FC_RUN;
	struct flow_kept kept;

	flow_run(&by, near, root, run, 0, &kept, sums_to, true, false);
	for (size_t at = FC_RUN; at < end; at += FC_RUN) {
		for (size_t s = 0; s < 3; s++)
			translate_ahead(run->to[s] + at);
		flow_run(&by, near, root, run, at, &kept, sums_to, true, true);
	}
	flow_run(&by, near, root, run, end, &kept, sums_to, false, true);
}

FC_TARGET static void flow(const struct fc_step_run *run, uint64_t runs, uint64_t *const sums[3])
{
	const bool near = run->row->beta1_rest < 0.5f;

	if (near && run->root == FC_STEP_ROOT_NEWTON)
		flow_of(run, runs, sums, true, FC_STEP_ROOT_NEWTON);
	else if (near)
		flow_of(run, runs, sums, true, FC_STEP_ROOT_EXACT);
	else
		flow_of(run, runs, sums, false, run->root);
}
