/* One float32 at a time, on every CPU. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define FC_TARGET
#define FC_INLINE FC_TARGET static inline __attribute__((always_inline))
#define FC_LANES 1u

typedef float fc_v;

#define v_all(x) (x)
#define v_load(p) (*(p))
#define v_store(p, x) (*(p) = (x))
#define v_add(a, b) ((a) + (b))
#define v_sub(a, b) ((a) - (b))
#define v_mul(a, b) ((a) * (b))
#define v_div(a, b) ((a) / (b))
#define v_fma(a, b, c) fmaf(a, b, c)
#define v_fnma(a, b, c) fmaf(-(a), b, c)
#define v_sqrt(a) sqrtf(a)
#define v_negate(a) (-(a))

FC_INLINE uint32_t bits_of(fc_v x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof bits);
	return bits;
}

/* Elsewhere no library begins there: the caller never asks for it (Python probes). */
FC_INLINE fc_v v_rsqrt(fc_v x)
{
#if defined(__x86_64__)
	return _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(x)));
#else
	return 1.0f / sqrtf(x);
#endif
}

#if defined(__x86_64__)
__attribute__((target("avx512f"), noinline)) static fc_v v_rsqrt14(fc_v x)
{
	return _mm_cvtss_f32(_mm_rsqrt14_ss(_mm_setzero_ps(), _mm_set_ss(x)));
}
#else
#define v_rsqrt14(a) v_rsqrt(a)
#endif

/* `then` where a < b; `other` elsewhere, also where either is NaN. */
FC_INLINE fc_v v_where_less(fc_v a, fc_v b, fc_v then, fc_v other)
{
	return a < b ? then : other;
}

/* NaN where either is one: all bits set, as the vectors have it. */
FC_INLINE fc_v v_maximum(fc_v a, fc_v b)
{
	const uint32_t all = 0xffffffffu;
	fc_v nan;

	memcpy(&nan, &all, sizeof nan);
	return a != a || b != b ? nan : a > b ? a : b;
}

FC_INLINE bool v_rare(fc_v x)
{
	return (int32_t)(bits_of(x) + 0x7f800000u) > (int32_t)0xfefff000u;
}

FC_INLINE fc_v v_mix_rare(fc_v x, fc_v common, fc_v rare)
{
	return v_rare(x) ? rare : common;
}

/* Whether anything was rare. */
typedef bool fc_bits;

FC_INLINE fc_bits v_none(void)
{
	return false;
}

FC_INLINE fc_bits v_note(fc_bits noted, fc_v x, fc_v root, uint32_t least)
{
	return noted || v_rare(x) || bits_of(root) < least;
}

FC_INLINE bool v_noted(fc_bits noted, uint32_t least)
{
	(void)least;
	return noted;
}
