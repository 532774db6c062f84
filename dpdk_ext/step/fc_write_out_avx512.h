/* Lines summed, and written past the caches, sixteen float32 at a time. */
#include "fc_digest.h"
#include "fc_step_variant.h"

struct v_sums {
	__m256i lanes;
};

FC_INLINE struct v_sums sums_of(const uint64_t *lanes)
{
	return (struct v_sums){ _mm256_loadu_si256((const __m256i *)lanes) };
}

FC_INLINE void keep_sums(const struct v_sums *sums, uint64_t *to)
{
	_mm256_storeu_si256((__m256i *)to, sums->lanes);
}

FC_INLINE void sum_bits(struct v_sums *sums, __m512i bits)
{
	const __m256i once = _mm256_aesenc_epi128(sums->lanes, _mm512_castsi512_si256(bits));

	sums->lanes = _mm256_aesenc_epi128(once, _mm512_extracti64x4_epi64(bits, 1));
}

FC_INLINE void sum_pair(struct v_sums *sums, const uint8_t *bytes)
{
	sums->lanes = _mm256_aesenc_epi128(sums->lanes, _mm256_loadu_si256((const __m256i *)bytes));
}

FC_INLINE void sum_vector(struct v_sums *sums, fc_v made)
{
	sum_bits(sums, _mm512_castps_si512(made));
}

FC_INLINE void stream_vector(float *to, fc_v made)
{
	_mm512_stream_ps(to, made);
}

/* A cache line. */
struct v_line {
	__m512i all;
};

FC_INLINE struct v_line line_at(const uint8_t *bytes)
{
	return (struct v_line){ _mm512_loadu_si512(bytes) };
}

FC_INLINE void sum_line(struct v_sums *sums, struct v_line line)
{
	sum_bits(sums, line.all);
}

FC_INLINE void stream_line(uint8_t *to, struct v_line line)
{
	_mm512_stream_si512((__m512i *)to, line.all);
}
