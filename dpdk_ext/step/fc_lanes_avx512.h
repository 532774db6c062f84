/* Sixteen float32 at a time. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define FC_TARGET __attribute__((target("avx512f,avx512dq,avx2,fma,vaes")))
#define FC_INLINE FC_TARGET static inline __attribute__((always_inline))
#define FC_LANES 16u

typedef __m512 fc_v;

#define v_all(x) _mm512_set1_ps(x)
#define v_load(p) _mm512_loadu_ps(p)
#define v_store(p, x) _mm512_storeu_ps(p, x)
#define v_add(a, b) _mm512_add_ps(a, b)
#define v_sub(a, b) _mm512_sub_ps(a, b)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_div(a, b) _mm512_div_ps(a, b)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_fnma(a, b, c) _mm512_fnmadd_ps(a, b, c)
#define v_sqrt(a) _mm512_sqrt_ps(a)
#define v_rsqrt14(a) _mm512_rsqrt14_ps(a)
#define v_negate(a) _mm512_xor_ps(a, _mm512_set1_ps(-0.0f))

/* The estimate of 12 bits that narrower vectors have; the one of 14 bits is another number. */
FC_INLINE fc_v v_rsqrt(fc_v x)
{
	const __m256 low = _mm256_rsqrt_ps(_mm512_castps512_ps256(x));
	const __m256 high = _mm256_rsqrt_ps(_mm512_extractf32x8_ps(x, 1));

	return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

/* `then` where a < b; `other` elsewhere, also where either is NaN. */
FC_INLINE fc_v v_where_less(fc_v a, fc_v b, fc_v then, fc_v other)
{
	return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), other, then);
}

/* NaN where either is one: all bits set, as torch's vectors have it (vec512_float.h, maximum). */
FC_INLINE fc_v v_maximum(fc_v a, fc_v b)
{
	const __mmask16 unordered = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
	return _mm512_castsi512_ps(
		_mm512_mask_set1_epi32(_mm512_castps_si512(_mm512_max_ps(a, b)), unordered, -1));
}

FC_INLINE __mmask16 rare_lanes(fc_v x)
{
	const __m512i moved =
		_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x7f800000));
	return _mm512_cmpgt_epi32_mask(moved, _mm512_set1_epi32((int)0xfefff000));
}

FC_INLINE fc_v v_mix_rare(fc_v x, fc_v common, fc_v rare)
{
	return _mm512_mask_blend_ps(rare_lanes(x), common, rare);
}

/* As in fc_lanes_avx2.h. */
typedef __m512i fc_bits;
#define ROOT_RARE 0x5f7ff000u

FC_INLINE fc_bits v_none(void)
{
	return _mm512_setzero_si512();
}

FC_INLINE fc_bits v_note(fc_bits noted, fc_v x, fc_v root, uint32_t least)
{
	(void)x;
	return _mm512_max_epu32(
		noted, _mm512_sub_epi32(_mm512_castps_si512(root), _mm512_set1_epi32((int)least)));
}

FC_INLINE bool v_noted(fc_bits noted, uint32_t least)
{
	return _mm512_cmpge_epu32_mask(noted, _mm512_set1_epi32((int)(ROOT_RARE - least))) != 0;
}
