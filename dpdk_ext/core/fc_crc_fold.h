/* CRC-32 by carry-less multiplication (pclmul): code that fc_icrc.c and fc_sha256.c share. */
#ifndef FC_CRC_FOLD_H
#define FC_CRC_FOLD_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* Folding constants: x^n mod P, bit-reflected, for the given distances, from V. Gopal et al.,
 * "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ" (Intel, 2009), appendix, for 512
 * and 128 bits; 2048 and 1024 by the same formula. */
#define FOLD_2048_LOW 0x011542778aull
#define FOLD_2048_HIGH 0x01322d1430ull
#define FOLD_1024_LOW 0x01e88ef372ull
#define FOLD_1024_HIGH 0x014a7fe880ull
#define FOLD_512_LOW 0x0154442bd4ull
#define FOLD_512_HIGH 0x01c6e41596ull
#define FOLD_128_LOW 0x01751997d0ull
#define FOLD_128_HIGH 0x00ccaa009eull
#define FOLD_64 0x0163cd6124ull
#define BARRETT_P 0x01db710641ull
#define BARRETT_MU 0x01f7011641ull

#define CLMUL_TARGET __attribute__((target("ssse3,sse4.1,pclmul")))

CLMUL_TARGET static inline __m128i fold(__m128i x, __m128i by, __m128i next)
{
	const __m128i low = _mm_clmulepi64_si128(x, by, 0x00);
	const __m128i high = _mm_clmulepi64_si128(x, by, 0x11);

	return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

CLMUL_TARGET static inline __m128i load(const uint8_t *p)
{
	return _mm_loadu_si128((const __m128i *)p);
}

/* Combines four lanes at a distance of 512 bits to one. */
CLMUL_TARGET static inline __m128i join(const __m128i *x)
{
	const __m128i by = _mm_set_epi64x((long long)FOLD_128_HIGH, (long long)FOLD_128_LOW);

	return fold(fold(fold(x[0], by, x[1]), by, x[2]), by, x[3]);
}

/* Shuffle masks that move a block by n bytes and fill with zeros: towards its start from shifts +
 * 16 + n, towards its end from shifts + 16 - n. */
/* clang-format off */
static const uint8_t shifts[48] = {
	0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
	0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
	0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
};
/* clang-format on */

/* Folds the last `count` < 16 bytes: the first `count` bytes of x form a block of their own, the
 * remaining bytes and the rest the last block. At least 16 bytes must precede p. */
CLMUL_TARGET static inline __m128i fold_rest(__m128i x, __m128i by, const uint8_t *p, size_t count)
{
	const __m128i keep = load(shifts + 16 + count);
	const __m128i first = _mm_shuffle_epi8(x, load(shifts + count));
	const __m128i last = _mm_blendv_epi8(_mm_shuffle_epi8(x, keep), load(p + count - 16), keep);

	return fold(first, by, last);
}

/* Reduces what is left after the last 64 bytes: 128 bits to 32 by Barrett reduction. */
CLMUL_TARGET static inline uint32_t finish(__m128i x, const uint8_t *p, size_t count)
{
	const __m128i by = _mm_set_epi64x((long long)FOLD_128_HIGH, (long long)FOLD_128_LOW);
	const __m128i low32 = _mm_setr_epi32(~0, 0, ~0, 0);

	for (; count >= 16; p += 16, count -= 16)
		x = fold(x, by, load(p));
	if (count)
		x = fold_rest(x, by, p, count);
	x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, by, 0x10));
	x = _mm_xor_si128(_mm_srli_si128(x, 4),
			  _mm_clmulepi64_si128(_mm_and_si128(x, low32),
					       _mm_cvtsi64_si128((long long)FOLD_64), 0x00));
	const __m128i barrett = _mm_set_epi64x((long long)BARRETT_MU, (long long)BARRETT_P);
	__m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(x, low32), barrett, 0x10);
	quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low32), barrett, 0x00);
	return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x, quotient), 1);
}

/* State of a CRC-32 over 64 bytes at a time, as four lanes of 16 bytes. */
struct folding {
	__m128i lanes[4], before;
};

/* before: as in fc_crc32. */
CLMUL_TARGET static inline void begin_folding(struct folding *crc, uint32_t before)
{
	for (int lane = 0; lane < 4; lane++)
		crc->lanes[lane] = _mm_setzero_si128();
	crc->before = _mm_cvtsi32_si128((int)~before);
}

/* Call for lanes 0 to 3 in turn. */
CLMUL_TARGET static inline void fold_in(struct folding *crc, int lane, __m128i raw)
{
	const __m128i by = _mm_set_epi64x((long long)FOLD_512_HIGH, (long long)FOLD_512_LOW);

	if (!lane) {
		raw = _mm_xor_si128(raw, crc->before);
		crc->before = _mm_setzero_si128();
	}
	crc->lanes[lane] = fold(crc->lanes[lane], by, raw);
}

/* Requires at least one block. */
CLMUL_TARGET static inline uint32_t end_folding(const struct folding *crc)
{
	return ~finish(join(crc->lanes), NULL, 0);
}

#endif
#endif
