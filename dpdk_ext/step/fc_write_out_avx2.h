/* Lines summed, and written past the caches, eight float32 at a time: one vector is what both lanes
 * of a digest take. FC_VAES: both at once. */
#include "fc_digest.h"
#include "fc_step_variant.h"

#ifdef FC_VAES
struct v_sums {
	__m256i lanes;
};

FC_INLINE void sum_bits(struct v_sums *sums, __m256i bits)
{
	sums->lanes = _mm256_aesenc_epi128(sums->lanes, bits);
}

FC_INLINE struct v_sums sums_of(const uint64_t *lanes)
{
	return (struct v_sums){ _mm256_loadu_si256((const __m256i *)lanes) };
}

FC_INLINE void keep_sums(const struct v_sums *sums, uint64_t *to)
{
	_mm256_storeu_si256((__m256i *)to, sums->lanes);
}
#else
struct v_sums {
	__m128i a, b;
};

FC_INLINE void sum_bits(struct v_sums *sums, __m256i bits)
{
	sums->a = _mm_aesenc_si128(sums->a, _mm256_castsi256_si128(bits));
	sums->b = _mm_aesenc_si128(sums->b, _mm256_extracti128_si256(bits, 1));
}

FC_INLINE struct v_sums sums_of(const uint64_t *lanes)
{
	const __m128i *each = (const __m128i *)lanes;

	return (struct v_sums){ _mm_loadu_si128(each), _mm_loadu_si128(each + 1) };
}

FC_INLINE void keep_sums(const struct v_sums *sums, uint64_t *to)
{
	_mm_storeu_si128((__m128i *)to, sums->a);
	_mm_storeu_si128((__m128i *)to + 1, sums->b);
}
#endif

FC_INLINE void sum_pair(struct v_sums *sums, const uint8_t *bytes)
{
	sum_bits(sums, _mm256_loadu_si256((const __m256i *)bytes));
}

FC_INLINE void sum_vector(struct v_sums *sums, fc_v made)
{
	sum_bits(sums, _mm256_castps_si256(made));
}

FC_INLINE void stream_vector(float *to, fc_v made)
{
	_mm256_stream_ps(to, made);
}

/* A cache line. */
struct v_line {
	__m256i low, high;
};

FC_INLINE struct v_line line_at(const uint8_t *bytes)
{
	const __m256i *each = (const __m256i *)bytes;

	return (struct v_line){ _mm256_loadu_si256(each), _mm256_loadu_si256(each + 1) };
}

FC_INLINE void sum_line(struct v_sums *sums, struct v_line line)
{
	sum_bits(sums, line.low);
	sum_bits(sums, line.high);
}

FC_INLINE void stream_line(uint8_t *to, struct v_line line)
{
	_mm256_stream_si256((__m256i *)to, line.low);
	_mm256_stream_si256((__m256i *)(to + 32), line.high);
}
