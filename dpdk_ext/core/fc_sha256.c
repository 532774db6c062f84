/* SHA-256 of two streams by Intel's SHA extensions (FIPS 180-4, sections 5 and 6.2; Intel's
 * instruction set reference, SHA256RNDS2, SHA256MSG1, SHA256MSG2). OpenSSL hashes one stream per
 * call, limited by the latency of its rounds; for bytes that go into two hashes that takes twice
 * the time. Two interleaved streams keep the SHA unit busy, while copying the bytes and computing
 * their CRC use units that are idle. Compiled for AVX, whose instructions have a separate result
 * register: without it, register moves cost a tenth of the rate. */
#include "fc_sha256.h"

#include <string.h>

#include "fc_crc_fold.h"
#include "fc_icrc.h"

#define BLOCK ((size_t)64)

/* One block of each stream. */
struct blocks {
	uint32_t *state, *other_state;
	const uint8_t *data, *other_data;
	size_t count;
};

#if defined(__x86_64__)
#define SHA_TARGET __attribute__((target("sha,avx,pclmul")))
#define SHA_INLINE SHA_TARGET static inline __attribute__((always_inline))

/* FIPS 180-4, 4.2.2 */
/* clang-format off */
static const uint32_t round_words[64] __attribute__((aligned(16))) = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};
/* clang-format on */

/* Block of one stream: the words a b e f and c d g h in the order of the instructions, and the
 * last sixteen words of the message schedule. */
struct lane {
	__m128i abef, cdgh, words[4];
};

SHA_TARGET static inline void load_state(struct lane *lane, const uint32_t *state)
{
	const __m128i dcba = _mm_loadu_si128((const __m128i *)state);
	const __m128i hgfe = _mm_loadu_si128((const __m128i *)(state + 4));
	const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);

	lane->abef = _mm_alignr_epi8(cdab, efgh, 8);
	lane->cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
}

SHA_TARGET static inline void store_state(const struct lane *lane, uint32_t *state)
{
	const __m128i feba = _mm_shuffle_epi32(lane->abef, 0x1b);
	const __m128i dchg = _mm_shuffle_epi32(lane->cdgh, 0xb1);

	_mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
	_mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

/* The loaded data is also copied to `to` and folded into `crc`, unless they are NULL. */
SHA_INLINE void load_words(struct lane *lane, const uint8_t *block, uint8_t *to,
			   struct folding *crc)
{
	const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);

	for (int i = 0; i < 4; i++) {
		const __m128i raw = _mm_loadu_si128((const __m128i *)(block + 16 * i));
		if (to)
			_mm_storeu_si128((__m128i *)(to + 16 * i), raw);
		if (crc)
			fold_in(crc, i, raw);
		lane->words[i] = _mm_shuffle_epi8(raw, big_endian);
	}
}

/* Words of rounds 4 * group to 4 * group + 3, with the round keys added. */
SHA_INLINE __m128i keyed(__m128i *words, int group)
{
	const int own = group & 3, next = (group + 1) & 3, third = (group + 2) & 3;
	const int last = (group + 3) & 3;

	if (group >= 4) {
		const __m128i moved = _mm_alignr_epi8(words[last], words[third], 4);
		const __m128i begun = _mm_sha256msg1_epu32(words[own], words[next]);
		words[own] = _mm_sha256msg2_epu32(_mm_add_epi32(begun, moved), words[last]);
	}
	return _mm_add_epi32(words[own],
			     _mm_load_si128((const __m128i *)(round_words + 4 * group)));
}

/* Executes these four rounds. */
SHA_INLINE void four(struct lane *lane, __m128i words)
{
	lane->cdgh = _mm_sha256rnds2_epu32(lane->cdgh, lane->abef, words);
	lane->abef = _mm_sha256rnds2_epu32(lane->abef, lane->cdgh, _mm_shuffle_epi32(words, 0x0e));
}

SHA_TARGET static void blocks_of_one(uint32_t *state, const uint8_t *data, size_t blocks)
{
	struct lane one;

	load_state(&one, state);
	for (; blocks; blocks--, data += BLOCK) {
		const __m128i abef = one.abef, cdgh = one.cdgh;
		load_words(&one, data, NULL, NULL);
#pragma GCC unroll 16
		for (int group = 0; group < 16; group++)
			four(&one, keyed(one.words, group));
		one.abef = _mm_add_epi32(one.abef, abef);
		one.cdgh = _mm_add_epi32(one.cdgh, cdgh);
	}
	store_state(&one, state);
}

/* `to` and `crc`, unless NULL, get the data of the first stream. same: both streams have the same
 * data, whose schedule is computed once. */
SHA_INLINE void two_lanes(struct blocks in, uint8_t *to, struct folding *crc, bool same)
{
	struct lane one, two;

	load_state(&one, in.state);
	load_state(&two, in.other_state);
	for (size_t i = 0; i < in.count; i++) {
		const __m128i one_abef = one.abef, one_cdgh = one.cdgh;
		const __m128i two_abef = two.abef, two_cdgh = two.cdgh;
		load_words(&one, in.data + i * BLOCK, to ? to + i * BLOCK : NULL, crc);
		if (!same)
			load_words(&two, in.other_data + i * BLOCK, NULL, NULL);
#pragma GCC unroll 16
		for (int group = 0; group < 16; group++) {
			const __m128i words = keyed(one.words, group);
			four(&one, words);
			four(&two, same ? words : keyed(two.words, group));
		}
		one.abef = _mm_add_epi32(one.abef, one_abef);
		one.cdgh = _mm_add_epi32(one.cdgh, one_cdgh);
		two.abef = _mm_add_epi32(two.abef, two_abef);
		two.cdgh = _mm_add_epi32(two.cdgh, two_cdgh);
	}
	store_state(&one, in.state);
	store_state(&two, in.other_state);
}

SHA_INLINE void same_or_not(struct blocks in, uint8_t *to, struct folding *crc)
{
	if (in.data == in.other_data)
		two_lanes(in, to, crc, true);
	else
		two_lanes(in, to, crc, false);
}

/* At least one block. */
SHA_TARGET static void blocks_of_two(struct blocks in, uint8_t *to, uint32_t *crc)
{
	if (crc) {
		struct folding folding;

		begin_folding(&folding, *crc);
		same_or_not(in, to, &folding);
		*crc = end_folding(&folding);
	} else if (to) {
		same_or_not(in, to, NULL);
	} else {
		same_or_not(in, NULL, NULL);
	}
}

bool fc_sha256_here(void)
{
	uint32_t eax = 7, ebx = 0, ecx = 0, edx = 0;

	__builtin_cpu_init();
	if (!__builtin_cpu_supports("avx") || !__builtin_cpu_supports("pclmul"))
		return false;
	/* gcc 12 does not know the feature name "sha". CPUID leaf 7, EBX bit 29. */
	__asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
	return ebx >> 29 & 1;
}
#else
static void blocks_of_one(uint32_t *state, const uint8_t *data, size_t blocks)
{
	(void)state, (void)data, (void)blocks;
}

static void blocks_of_two(struct blocks in, uint8_t *to, uint32_t *crc)
{
	(void)in, (void)to, (void)crc;
}

bool fc_sha256_here(void)
{
	return false;
}
#endif

void fc_sha256_begin(struct fc_sha256 *sum)
{
	/* FIPS 180-4, 5.3.3 */
	static const uint32_t first[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
					   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };

	memset(sum, 0, sizeof *sum);
	memcpy(sum->words, first, sizeof first);
}

/* Completes the buffered block as far as there are bytes; returns the bytes used. */
static size_t fill_held(struct fc_sha256 *sum, const uint8_t *data, size_t bytes)
{
	const size_t room = BLOCK - sum->pending_bytes, taken = bytes < room ? bytes : room;

	if (!sum->pending_bytes)
		return 0;
	memcpy(sum->pending + sum->pending_bytes, data, taken);
	sum->pending_bytes += (uint32_t)taken;
	if (sum->pending_bytes == BLOCK) {
		blocks_of_one(sum->words, sum->pending, 1);
		sum->pending_bytes = 0;
	}
	return taken;
}

/* Hashes whole blocks and buffers the rest; no block may be buffered before. */
static void add_rest(struct fc_sha256 *sum, const uint8_t *data, size_t bytes)
{
	const size_t blocks = bytes / BLOCK;

	blocks_of_one(sum->words, data, blocks);
	if (bytes % BLOCK)
		memcpy(sum->pending, data + blocks * BLOCK, bytes % BLOCK);
	sum->pending_bytes = (uint32_t)(bytes % BLOCK);
}

static void copy(uint8_t *to, const uint8_t *data, size_t bytes, uint32_t *crc)
{
	memcpy(to, data, bytes);
	if (crc)
		*crc = fc_crc32(*crc, data, bytes);
}

/* Adds equally many bytes to both; `to` and `crc`, unless NULL, get `data`. */
static void add_both(struct fc_sha256 *sum, const uint8_t *data, struct fc_sha256 *other,
		     const uint8_t *other_data, size_t bytes, uint8_t *to, uint32_t *crc)
{
	const size_t taken = fill_held(sum, data, bytes);
	const size_t other_taken = fill_held(other, other_data, bytes);
	const size_t most = taken > other_taken ? taken : other_taken;
	const size_t both = (bytes - most) / BLOCK;
	const size_t done = taken + both * BLOCK, other_done = other_taken + both * BLOCK;

	sum->bytes += bytes;
	other->bytes += bytes;
	if (to && taken)
		copy(to, data, taken, crc);
	if (both) {
		const struct blocks in = { sum->words, other->words, data + taken,
					   other_data + other_taken, both };
		blocks_of_two(in, to ? to + taken : NULL, crc);
	}
	if (to && done < bytes)
		copy(to + done, data + done, bytes - done, crc);
	if (done < bytes)
		add_rest(sum, data + done, bytes - done);
	if (other_done < bytes)
		add_rest(other, other_data + other_done, bytes - other_done);
}

void fc_sha256_add(struct fc_sha256 *sum, const uint8_t *data, struct fc_sha256 *other,
		   const uint8_t *other_data, size_t bytes)
{
	if (other) {
		add_both(sum, data, other, other_data, bytes, NULL, NULL);
		return;
	}
	const size_t taken = fill_held(sum, data, bytes);

	sum->bytes += bytes;
	if (taken < bytes)
		add_rest(sum, data + taken, bytes - taken);
}

void fc_sha256_pour(struct fc_sha256 *sum, struct fc_sha256 *other, const uint8_t *data,
		    uint8_t *to, size_t bytes, uint32_t *crc)
{
	add_both(sum, data, other, data, bytes, to, crc);
}

void fc_sha256_end(struct fc_sha256 *sum, uint8_t *out)
{
	const uint64_t bits = sum->bytes * 8;
	const size_t pad = (sum->pending_bytes < 56 ? 56 : 56 + BLOCK) - sum->pending_bytes;
	uint8_t tail[2 * 64] = { 0x80 };

	for (int i = 0; i < 8; i++)
		tail[pad + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
	fc_sha256_add(sum, tail, NULL, NULL, pad + 8);
	for (int i = 0; i < 32; i++)
		out[i] = (uint8_t)(sum->words[i / 4] >> (24 - 8 * (i % 4)));
}
