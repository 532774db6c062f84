#if defined(__x86_64__)
#include "fc_lanes_avx2.h"
/* The lanes come first. */
#include "fc_step_kernels.h"

/* Two of xxh3's eight sums of 64 bits in each half. */
FC_TARGET static inline __m256i sum(__m256i sums, __m256i data, __m256i secret)
{
	const __m256i keyed = _mm256_xor_si256(data, secret);
	const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
	const __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));

	return _mm256_add_epi64(sums, _mm256_add_epi64(product, swapped));
}

FC_TARGET static inline __m256i scramble(__m256i sums, __m256i secret)
{
	const __m256i prime = _mm256_set1_epi32((int)FC_DIGEST_PRIME32_1);
	const __m256i mixed =
		_mm256_xor_si256(_mm256_xor_si256(sums, _mm256_srli_epi64(sums, 47)), secret);
	const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);

	return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(high, 32));
}

FC_TARGET static inline __m256i at(const void *bytes)
{
	return _mm256_loadu_si256(bytes);
}

FC_TARGET static inline void stream(uint8_t *to, const uint8_t *from)
{
	_mm256_stream_si256((__m256i *)to, at(from));
	_mm256_stream_si256((__m256i *)(to + 32), at(from + 32));
}

FC_TARGET static inline void digest_runs(uint64_t *sums, const uint8_t *data, size_t runs,
					 uint8_t *to, const uint8_t *from, bool streams)
{
	const uint8_t *last = fc_digest_secret + FC_DIGEST_SECRET - FC_DIGEST_STRIPE;
	__m256i low = at(sums), high = at(sums + 4);

	for (; runs; runs--, data += FC_DIGEST_RUN) {
#pragma GCC unroll 16
		for (uint32_t i = 0; i < FC_DIGEST_RUN / FC_DIGEST_STRIPE; i++) {
			const uint8_t *secret = fc_digest_secret + 8 * i;
			const uint8_t *stripe = data + FC_DIGEST_STRIPE * i;
			low = sum(low, at(stripe), at(secret));
			high = sum(high, at(stripe + 32), at(secret + 32));
			if (streams)
				stream(to + FC_DIGEST_STRIPE * i, from + FC_DIGEST_STRIPE * i);
		}
		low = scramble(low, at(last));
		high = scramble(high, at(last + 32));
		if (streams)
			to += FC_DIGEST_RUN, from += FC_DIGEST_RUN;
	}
	_mm256_storeu_si256((__m256i *)sums, low);
	_mm256_storeu_si256((__m256i *)(sums + 4), high);
}

FC_TARGET static void digest(uint64_t *sums, const uint8_t *data, size_t runs, uint8_t *to,
			     const uint8_t *from)
{
	if (to)
		digest_runs(sums, data, runs, to, from, true);
	else
		digest_runs(sums, data, runs, NULL, NULL, false);
}

const struct fc_step_twin fc_step_avx2 = { "avx2", take, roots, digest };
#endif
