#if defined(__x86_64__)
#include "fc_lanes_avx512.h"
/* The lanes come first. */
#include "fc_step_kernels.h"

FC_TARGET static void digest(uint64_t *sums, const uint8_t *data, size_t runs, uint8_t *to,
			     const uint8_t *from)
{
	const __m512i prime = _mm512_set1_epi32((int)FC_DIGEST_PRIME32_1);
	const __m512i last =
		_mm512_loadu_si512(fc_digest_secret + FC_DIGEST_SECRET - FC_DIGEST_STRIPE);
	__m512i all = _mm512_loadu_si512(sums);

	for (; runs; runs--, data += FC_DIGEST_RUN) {
		for (uint32_t i = 0; i < FC_DIGEST_RUN / FC_DIGEST_STRIPE; i++) {
			const __m512i stripe = _mm512_loadu_si512(data + FC_DIGEST_STRIPE * i);
			const __m512i keyed = _mm512_xor_si512(
				stripe, _mm512_loadu_si512(fc_digest_secret + 8 * i));
			const __m512i product =
				_mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
			const __m512i swapped = _mm512_shuffle_epi32(
				stripe, (_MM_PERM_ENUM)_MM_SHUFFLE(1, 0, 3, 2));
			all = _mm512_add_epi64(product, _mm512_add_epi64(all, swapped));
		}
		for (uint32_t i = 0; to && i < FC_DIGEST_RUN; i += FC_DIGEST_STRIPE)
			_mm512_stream_si512((__m512i *)(to + i), _mm512_loadu_si512(from + i));
		if (to)
			to += FC_DIGEST_RUN, from += FC_DIGEST_RUN;
		all = _mm512_xor_si512(_mm512_xor_si512(all, _mm512_srli_epi64(all, 47)), last);
		const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(all, 32), prime);
		all = _mm512_add_epi64(_mm512_mul_epu32(all, prime), _mm512_slli_epi64(high, 32));
	}
	_mm512_storeu_si512(sums, all);
}

const struct fc_step_twin fc_step_avx512 = { "avx512", take, roots, digest };
#endif
