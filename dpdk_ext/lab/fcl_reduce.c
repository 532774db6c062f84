#include <math.h>

#include "fcl_comm.h"
#include "fcl_half.h"
#include "fcl_reduce.h"

uint32_t fcl_type_bytes(uint32_t type)
{
	switch (type) {
	case FCL_INT8:
	case FCL_UINT8:
		return 1;
	case FCL_FLOAT16:
	case FCL_BFLOAT16:
		return 2;
	case FCL_INT32:
	case FCL_FLOAT32:
		return 4;
	case FCL_INT64:
	case FCL_FLOAT64:
		return 8;
	default:
		return 0;
	}
}

#define PLAIN(x) (x)

/* One loop: LOAD takes an element into the type it is computed in, STORE rounds it back. The stores
 * go through memory of the element's type, so no excess precision survives a hop. */
#define EACH(TYPE, LOAD, STORE, WIDE, EXPRESSION)                                                  \
	for (uint64_t i = 0; i < count; i++) {                                                     \
		WIDE a = LOAD(((const TYPE *)received)[i]), b = LOAD(((const TYPE *)own)[i]);      \
		((TYPE *)out)[i] = STORE(EXPRESSION);                                              \
	}                                                                                          \
	break

/* Signed sums and products wrap as they do on a GPU: they are computed unsigned. */
#define INTEGERS(NAME, TYPE, UNSIGNED)                                                             \
	static void NAME(const struct fcl_arithmetic *arithmetic, void *out, const void *received, \
			 const void *own, uint64_t count, int last)                                \
	{                                                                                          \
		switch (arithmetic->reduction) {                                                   \
		case FCL_MIN:                                                                      \
			EACH(TYPE, PLAIN, PLAIN, TYPE, a < b ? a : b);                             \
		case FCL_MAX:                                                                      \
			EACH(TYPE, PLAIN, PLAIN, TYPE, a > b ? a : b);                             \
		case FCL_PROD:                                                                     \
			EACH(UNSIGNED, PLAIN, (UNSIGNED), uint64_t, (a) * (b));                    \
		default:                                                                           \
			EACH(UNSIGNED, PLAIN, (UNSIGNED), UNSIGNED, a + b);                        \
		}                                                                                  \
		if (!last || arithmetic->reduction != FCL_AVG)                                     \
			return;                                                                    \
		for (uint64_t i = 0; i < count; i++)                                               \
			((TYPE *)out)[i] = (TYPE)(((TYPE *)out)[i] / (int64_t)arithmetic->ranks);  \
	}

#define ROUNDED(STORE, LOAD, value) LOAD(STORE(value))

#define FLOATS(NAME, TYPE, LOAD, STORE, WIDE, LEAST, MOST)                                         \
	static void NAME(const struct fcl_arithmetic *arithmetic, void *out, const void *received, \
			 const void *own, uint64_t count, int last)                                \
	{                                                                                          \
		const WIDE scale = LOAD(STORE((WIDE)(1.0 / arithmetic->ranks)));                   \
		(void)last;                                                                        \
		switch (arithmetic->reduction) {                                                   \
		case FCL_MIN:                                                                      \
			EACH(TYPE, LOAD, STORE, WIDE, LEAST(a, b));                                \
		case FCL_MAX:                                                                      \
			EACH(TYPE, LOAD, STORE, WIDE, MOST(a, b));                                 \
		case FCL_PROD:                                                                     \
			EACH(TYPE, LOAD, STORE, WIDE, (a) * (b));                                  \
		case FCL_AVG:                                                                      \
			EACH(TYPE, LOAD, STORE, WIDE, a + ROUNDED(STORE, LOAD, (b)*scale));        \
		default:                                                                           \
			EACH(TYPE, LOAD, STORE, WIDE, a + b);                                      \
		}                                                                                  \
	}                                                                                          \
	static void NAME##_scale(const struct fcl_arithmetic *arithmetic, void *out,               \
				 const void *own, uint64_t count)                                  \
	{                                                                                          \
		const WIDE scale = LOAD(STORE((WIDE)(1.0 / arithmetic->ranks)));                   \
		for (uint64_t i = 0; i < count; i++)                                               \
			((TYPE *)out)[i] = STORE(LOAD(((const TYPE *)own)[i]) * scale);            \
	}

INTEGERS(reduce_int8, int8_t, uint8_t)
INTEGERS(reduce_uint8, uint8_t, uint8_t)
INTEGERS(reduce_int32, int32_t, uint32_t)
INTEGERS(reduce_int64, int64_t, uint64_t)
FLOATS(reduce_float16, uint16_t, fcl_load_float16, fcl_store_float16, float, fminf, fmaxf)
FLOATS(reduce_bfloat16, uint16_t, fcl_load_bfloat16, fcl_store_bfloat16, float, fminf, fmaxf)
FLOATS(reduce_float32, float, PLAIN, PLAIN, float, fminf, fmaxf)
FLOATS(reduce_float64, double, PLAIN, PLAIN, double, fmin, fmax)

void fcl_contribute(const struct fcl_arithmetic *arithmetic, void *out, const void *own,
		    uint64_t count)
{
	uint32_t scaled = arithmetic->reduction == FCL_AVG ? arithmetic->type : UINT32_MAX;

	switch (scaled) {
	case FCL_FLOAT16:
		reduce_float16_scale(arithmetic, out, own, count);
		return;
	case FCL_BFLOAT16:
		reduce_bfloat16_scale(arithmetic, out, own, count);
		return;
	case FCL_FLOAT32:
		reduce_float32_scale(arithmetic, out, own, count);
		return;
	case FCL_FLOAT64:
		reduce_float64_scale(arithmetic, out, own, count);
		return;
	default:
		if (out != own && count > 0)
			memcpy(out, own, count * fcl_type_bytes(arithmetic->type));
	}
}

void fcl_reduce(const struct fcl_arithmetic *arithmetic, void *out, const void *received,
		const void *own, uint64_t count, int last)
{
	typedef void reduction(const struct fcl_arithmetic *, void *, const void *, const void *,
			       uint64_t, int);
	static reduction *const by_type[] = {
		[FCL_INT8] = reduce_int8,       [FCL_UINT8] = reduce_uint8,
		[FCL_INT32] = reduce_int32,     [FCL_INT64] = reduce_int64,
		[FCL_FLOAT16] = reduce_float16, [FCL_BFLOAT16] = reduce_bfloat16,
		[FCL_FLOAT32] = reduce_float32, [FCL_FLOAT64] = reduce_float64,
	};

	by_type[arithmetic->type](arithmetic, out, received, own, count, last);
}
