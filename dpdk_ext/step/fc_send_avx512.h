/* Lines of xxh3 summed, and written past the caches, sixteen float32 at a time. */
#include "fc_step_twin.h"

/* As in fc_send_avx2.h. */
struct v_sums {
	__m512i made, own;
};

FC_INLINE struct v_sums sums_of(const uint64_t *sums)
{
	return (struct v_sums){ _mm512_loadu_si512(sums), _mm512_setzero_si512() };
}

/* A cache line. */
struct v_line {
	__m512i all;
};

FC_INLINE struct v_line line_at(const uint8_t *bytes)
{
	return (struct v_line){ _mm512_loadu_si512(bytes) };
}

/* Of the vectors that are a line. */
FC_INLINE struct v_line line_of(const fc_v *made)
{
	return (struct v_line){ _mm512_castps_si512(made[0]) };
}

FC_INLINE void sum_line(struct v_sums *sums, struct v_line line, size_t number)
{
	const __m512i secret = _mm512_loadu_si512(fc_digest_secret + 8 * number);
	const __m512i data = line.all, keyed = _mm512_xor_si512(data, secret);
	const __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));

	sums->made = _mm512_add_epi64(sums->made, product);
	sums->own = _mm512_add_epi64(sums->own, data);
}

FC_INLINE void mix_sums(const struct v_sums *sums, uint64_t *to)
{
	const __m512i prime = _mm512_set1_epi32((int)FC_DIGEST_PRIME32_1);
	const __m512i swapped =
		_mm512_shuffle_epi32(sums->own, (_MM_PERM_ENUM)_MM_SHUFFLE(1, 0, 3, 2));
	const __m512i all = _mm512_add_epi64(sums->made, swapped);
	const __m512i keyed =
		_mm512_xor_si512(_mm512_xor_si512(all, _mm512_srli_epi64(all, 47)),
				 _mm512_loadu_si512(fc_digest_secret + FC_DIGEST_MIX));
	const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(keyed, 32), prime);

	_mm512_storeu_si512(
		to, _mm512_add_epi64(_mm512_mul_epu32(keyed, prime), _mm512_slli_epi64(high, 32)));
}

FC_INLINE void stream_line(uint8_t *to, struct v_line line)
{
	_mm512_stream_si512((__m512i *)to, line.all);
}
