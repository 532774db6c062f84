/* Lines of xxh3 summed, and written past the caches, eight float32 at a time. */
#include "fc_step_twin.h"

/* Two of xxh3's eight sums of 64 bits in each half. Each line adds itself with neighbours swapped
 * (low, high) and its product (made): swapping can wait for the end of the run. */
struct v_sums {
	__m256i made_low, made_high, low, high;
};

FC_INLINE __m256i bytes_at(const void *bytes)
{
	return _mm256_loadu_si256(bytes);
}

FC_INLINE struct v_sums sums_of(const uint64_t *sums)
{
	return (struct v_sums){ bytes_at(sums), bytes_at(sums + 4), _mm256_setzero_si256(),
				_mm256_setzero_si256() };
}

FC_INLINE __m256i product(__m256i data, const uint8_t *secret)
{
	const __m256i keyed = _mm256_xor_si256(data, bytes_at(secret));

	return _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
}

/* A cache line. */
struct v_line {
	__m256i low, high;
};

FC_INLINE struct v_line line_at(const uint8_t *bytes)
{
	return (struct v_line){ bytes_at(bytes), bytes_at(bytes + 32) };
}

/* Of the vectors that are a line. */
FC_INLINE struct v_line line_of(const fc_v *made)
{
	return (struct v_line){ _mm256_castps_si256(made[0]), _mm256_castps_si256(made[1]) };
}

FC_INLINE void sum_line(struct v_sums *sums, struct v_line line, size_t number)
{
	const uint8_t *secret = fc_digest_secret + 8 * number;
	const __m256i low = line.low, high = line.high;

	sums->made_low = _mm256_add_epi64(sums->made_low, product(low, secret));
	sums->made_high = _mm256_add_epi64(sums->made_high, product(high, secret + 32));
	sums->low = _mm256_add_epi64(sums->low, low);
	sums->high = _mm256_add_epi64(sums->high, high);
}

FC_INLINE __m256i mixed(__m256i made, __m256i own, const uint8_t *secret)
{
	const __m256i prime = _mm256_set1_epi32((int)FC_DIGEST_PRIME32_1);
	const __m256i sums =
		_mm256_add_epi64(made, _mm256_shuffle_epi32(own, _MM_SHUFFLE(1, 0, 3, 2)));
	const __m256i shifted = _mm256_xor_si256(sums, _mm256_srli_epi64(sums, 47));
	const __m256i keyed = _mm256_xor_si256(shifted, bytes_at(secret));
	const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), prime);

	return _mm256_add_epi64(_mm256_mul_epu32(keyed, prime), _mm256_slli_epi64(high, 32));
}

FC_INLINE void mix_sums(const struct v_sums *sums, uint64_t *to)
{
	const uint8_t *secret = fc_digest_secret + FC_DIGEST_MIX;

	_mm256_storeu_si256((__m256i *)to, mixed(sums->made_low, sums->low, secret));
	_mm256_storeu_si256((__m256i *)(to + 4), mixed(sums->made_high, sums->high, secret + 32));
}

FC_INLINE void stream_line(uint8_t *to, struct v_line line)
{
	_mm256_stream_si256((__m256i *)to, line.low);
	_mm256_stream_si256((__m256i *)(to + 32), line.high);
}
