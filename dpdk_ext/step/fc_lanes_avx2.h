/* Eight float32 at a time. FC_VAES: on a CPU that also takes AES's round on eight. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef FC_VAES
#define FC_TARGET __attribute__((target("avx2,fma,vaes")))
#else
#define FC_TARGET __attribute__((target("avx2,fma,aes")))
#endif
#define FC_INLINE FC_TARGET static inline __attribute__((always_inline))
#define FC_LANES 8u

typedef __m256 fc_v;

#define v_all(x) _mm256_set1_ps(x)
#define v_load(p) _mm256_loadu_ps(p)
#define v_store(p, x) _mm256_storeu_ps(p, x)
#define v_add(a, b) _mm256_add_ps(a, b)
#define v_sub(a, b) _mm256_sub_ps(a, b)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_div(a, b) _mm256_div_ps(a, b)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_fnma(a, b, c) _mm256_fnmadd_ps(a, b, c) /* c - a b */
#define v_sqrt(a) _mm256_sqrt_ps(a)
#define v_rsqrt(a) _mm256_rsqrt_ps(a)
#define v_negate(a) _mm256_xor_ps(a, _mm256_set1_ps(-0.0f))

/* Of a CPU that has AVX-512 and yet takes these lanes. */
__attribute__((target("avx512f,avx512vl"), noinline, unused)) static fc_v v_rsqrt14(fc_v x)
{
	return _mm256_rsqrt14_ps(x);
}

/* `then` where a < b; `other` elsewhere, also where either is NaN. */
FC_INLINE fc_v v_where_less(fc_v a, fc_v b, fc_v then, fc_v other)
{
	return _mm256_blendv_ps(other, then, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

/* NaN where either is one: all bits set, as torch's vectors have it (vec256_float.h, maximum). */
FC_INLINE fc_v v_maximum(fc_v a, fc_v b)
{
	return _mm256_or_ps(_mm256_max_ps(a, b), _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}

FC_INLINE __m256i rare_lanes(fc_v x)
{
	const __m256i moved =
		_mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x7f800000));
	return _mm256_cmpgt_epi32(moved, _mm256_set1_epi32((int)0xfefff000));
}

FC_INLINE fc_v v_mix_rare(fc_v x, fc_v common, fc_v rare)
{
	return _mm256_blendv_ps(common, rare, _mm256_castsi256_ps(rare_lanes(x)));
}

/* The largest root so far, as bits: Newton's step makes NaN or minus infinity of what is rare, or
 * more than ROOT_RARE (tried on every float32). Counted from the least root that is not rare, round
 * which fewer come out as more. */
typedef __m256i fc_bits;
#define ROOT_RARE 0x5f7ff000u

FC_INLINE fc_bits v_none(void)
{
	return _mm256_setzero_si256();
}

FC_INLINE fc_bits v_note(fc_bits noted, fc_v x, fc_v root, uint32_t least)
{
	(void)x;
	return _mm256_max_epu32(
		noted, _mm256_sub_epi32(_mm256_castps_si256(root), _mm256_set1_epi32((int)least)));
}

FC_INLINE bool v_noted(fc_bits noted, uint32_t least)
{
	const __m256i rare = _mm256_set1_epi32((int)(ROOT_RARE - least));

	return _mm256_movemask_epi8(_mm256_cmpeq_epi32(_mm256_max_epu32(noted, rare), noted)) != 0;
}
