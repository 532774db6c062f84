#include "fc_icrc.h"

#include <stdlib.h>

#include "fc_copy.h"
#include "fc_crc_fold.h"
#include "fc_roce.h"

/* Ethernet polynomial, bit-reflected (IEEE 802.3 3.2.9) */
#define POLYNOMIAL 0xedb88320u

static uint32_t table[8][256];

static void build_table(void)
{
	for (uint32_t byte = 0; byte < 256; byte++) {
		uint32_t crc = byte;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
		table[0][byte] = crc;
	}
	for (uint32_t byte = 0; byte < 256; byte++)
		for (int k = 1; k < 8; k++)
			table[k][byte] =
				table[k - 1][byte] >> 8 ^ table[0][table[k - 1][byte] & 0xff];
}

static inline uint32_t le32(const uint8_t *p)
{
	return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

/* State in and out without inversion; slicing by eight. */
static uint32_t run_table(uint32_t crc, const uint8_t *p, size_t count)
{
	for (; count >= 8; p += 8, count -= 8) {
		const uint32_t low = crc ^ le32(p), high = le32(p + 4);
		crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^
		      table[5][low >> 16 & 0xff] ^ table[4][low >> 24] ^ table[3][high & 0xff] ^
		      table[2][high >> 8 & 0xff] ^ table[1][high >> 16 & 0xff] ^
		      table[0][high >> 24];
	}
	for (; count; p++, count--)
		crc = crc >> 8 ^ table[0][(crc ^ *p) & 0xff];
	return crc;
}

/* Each variant computes the CRC of `count` bytes as if the bits of `ones` were set in the first
 * ONES_BYTES of them; shorter inputs have no masked bits. */
#define ONES_BYTES 64

static const uint8_t no_ones[ONES_BYTES];

static uint32_t run_plain(uint32_t crc, const uint8_t *p, size_t count, const uint8_t *ones)
{
	uint8_t first[ONES_BYTES];

	if (count < sizeof first)
		return run_table(crc, p, count);
	for (size_t i = 0; i < sizeof first; i++)
		first[i] = p[i] | ones[i];
	return run_table(run_table(crc, first, sizeof first), p + sizeof first,
			 count - sizeof first);
}

#if defined(__x86_64__)
CLMUL_TARGET static uint32_t run_pclmul(uint32_t crc, const uint8_t *p, size_t count,
					const uint8_t *ones)
{
	if (count < 64)
		return run_table(crc, p, count);
	const __m128i by = _mm_set_epi64x((long long)FOLD_512_HIGH, (long long)FOLD_512_LOW);
	__m128i x[4];

	for (int lane = 0; lane < 4; lane++)
		x[lane] = _mm_or_si128(load(p + 16 * lane), load(ones + 16 * lane));
	x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)crc));
	for (p += 64, count -= 64; count >= 64; p += 64, count -= 64)
		for (int lane = 0; lane < 4; lane++)
			x[lane] = fold(x[lane], by, load(p + 16 * lane));
	return finish(join(x), p, count);
}

/* For processors that have VPCLMULQDQ but not AVX-512: two folds an instruction. */
#define VCLMUL_256_TARGET __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.1")))

VCLMUL_256_TARGET static inline __m256i fold256(__m256i x, __m256i by, __m256i next)
{
	const __m256i low = _mm256_clmulepi64_epi128(x, by, 0x00);
	const __m256i high = _mm256_clmulepi64_epi128(x, by, 0x11);

	return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

VCLMUL_256_TARGET static inline __m256i load256(const uint8_t *p)
{
	return _mm256_loadu_si256((const __m256i *)p);
}

VCLMUL_256_TARGET static uint32_t run_vpclmul256(uint32_t crc, const uint8_t *p, size_t count,
						 const uint8_t *ones)
{
	if (count < 128)
		return run_pclmul(crc, p, count, ones);
	const __m256i far = _mm256_broadcastsi128_si256(
		_mm_set_epi64x((long long)FOLD_1024_HIGH, (long long)FOLD_1024_LOW));
	const __m256i near = _mm256_broadcastsi128_si256(
		_mm_set_epi64x((long long)FOLD_512_HIGH, (long long)FOLD_512_LOW));
	__m256i x[4] = { _mm256_or_si256(load256(p), load256(ones)),
			 _mm256_or_si256(load256(p + 32), load256(ones + 32)), load256(p + 64),
			 load256(p + 96) };

	x[0] = _mm256_xor_si256(x[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)crc)));
	for (p += 128, count -= 128; count >= 128; p += 128, count -= 128)
		for (int lane = 0; lane < 4; lane++)
			x[lane] = fold256(x[lane], far, load256(p + 32 * lane));
	x[2] = fold256(x[0], near, x[2]);
	x[3] = fold256(x[1], near, x[3]);
	if (count >= 64) {
		x[2] = fold256(x[2], near, load256(p));
		x[3] = fold256(x[3], near, load256(p + 32));
		p += 64, count -= 64;
	}
	const __m128i lanes[4] = { _mm256_castsi256_si128(x[2]), _mm256_extracti128_si256(x[2], 1),
				   _mm256_castsi256_si128(x[3]),
				   _mm256_extracti128_si256(x[3], 1) };
	return finish(join(lanes), p, count);
}

#define VCLMUL_TARGET __attribute__((target("avx512f,avx512bw,vpclmulqdq,pclmul,sse4.1")))

VCLMUL_TARGET static inline __m512i fold512(__m512i x, __m512i by, __m512i next)
{
	const __m512i low = _mm512_clmulepi64_epi128(x, by, 0x00);
	const __m512i high = _mm512_clmulepi64_epi128(x, by, 0x11);

	return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}

VCLMUL_TARGET static inline __m512i by_distance(uint64_t high, uint64_t low)
{
	return _mm512_broadcast_i32x4(_mm_set_epi64x((long long)high, (long long)low));
}

/* The CRC state after x, then `count` bytes. */
VCLMUL_TARGET static inline uint32_t finish512(__m512i x, const uint8_t *p, size_t count)
{
	const __m512i near = by_distance(FOLD_512_HIGH, FOLD_512_LOW);

	for (; count >= 64; p += 64, count -= 64)
		x = fold512(x, near, _mm512_loadu_si512(p));
	const __m128i lanes[4] = { _mm512_extracti32x4_epi32(x, 0), _mm512_extracti32x4_epi32(x, 1),
				   _mm512_extracti32x4_epi32(x, 2),
				   _mm512_extracti32x4_epi32(x, 3) };
	return finish(join(lanes), p, count);
}

VCLMUL_TARGET static inline __m512i join512(const __m512i *x)
{
	const __m512i near = by_distance(FOLD_512_HIGH, FOLD_512_LOW);

	return fold512(fold512(fold512(x[0], near, x[1]), near, x[2]), near, x[3]);
}

VCLMUL_TARGET static uint32_t run_vpclmul(uint32_t crc, const uint8_t *p, size_t count,
					  const uint8_t *ones)
{
	if (count < 64)
		return run_table(crc, p, count);
	const __m512i far = by_distance(FOLD_2048_HIGH, FOLD_2048_LOW);
	__m512i one = _mm512_or_si512(_mm512_loadu_si512(p), _mm512_loadu_si512(ones));

	one = _mm512_xor_si512(one, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
	p += 64, count -= 64;
	if (count >= 192) {
		__m512i x[4] = { one };
		for (int lane = 1; lane < 4; lane++, p += 64, count -= 64)
			x[lane] = _mm512_loadu_si512(p);
		for (; count >= 256; p += 256, count -= 256)
			for (int lane = 0; lane < 4; lane++)
				x[lane] = fold512(x[lane], far, _mm512_loadu_si512(p + 64 * lane));
		one = join512(x);
	}
	return finish512(one, p, count);
}
#endif

static uint32_t (*chosen)(uint32_t, const uint8_t *, size_t, const uint8_t *) = run_plain;
static const char *chosen_name = "table";

uint32_t fc_crc32(uint32_t before, const uint8_t *bytes, size_t count)
{
	return ~chosen(~before, bytes, count, no_ones);
}

uint32_t fc_crc32_table(uint32_t before, const uint8_t *bytes, size_t count)
{
	return ~run_table(~before, bytes, count);
}

const char *fc_crc32_name(void)
{
	return chosen_name;
}

/* Masks TOS, TTL and checksum of IPv4; traffic class, flow label and hop limit of IPv6 (A17.3.3).
 */
static void mask_ip(uint8_t *ip)
{
	if (ip[0] >> 4 == 4) {
		ip[offsetof(struct fc_ipv4, tos)] = 0xff;
		ip[offsetof(struct fc_ipv4, ttl)] = 0xff;
		memset(ip + offsetof(struct fc_ipv4, checksum), 0xff, 2);
	} else {
		ip[0] |= 0x0f;
		memset(ip + 1, 0xff, 3);
		ip[offsetof(struct fc_ipv6, hop_limit)] = 0xff;
	}
}

/* Bits that A17.3.3 masks in a frame without IP options or extension headers, from eight bytes
 * before its IP header on: those stand for the InfiniBand LRH. With a block of zeros before and
 * after, for blocks that begin elsewhere. */
#define AT(byte) ONES_BYTES + (byte)
static const uint8_t ones_ipv4[3 * ONES_BYTES] = {
	[AT(0)... AT(7)] = 0xff,   [AT(9)] = 0xff,            /* LRH; TOS */
	[AT(16)] = 0xff,           [AT(18)... AT(19)] = 0xff, /* TTL; header checksum */
	[AT(34)... AT(35)] = 0xff, [AT(40)] = 0xff, /* UDP checksum; BTH: FECN, BECN, reserved */
};
static const uint8_t ones_ipv6[3 * ONES_BYTES] = {
	[AT(0)... AT(7)] = 0xff,   [AT(8)] = 0x0f,
	[AT(9)... AT(11)] = 0xff,                   /* LRH; class; label */
	[AT(15)] = 0xff,                            /* hop limit */
	[AT(54)... AT(55)] = 0xff, [AT(60)] = 0xff, /* UDP checksum; BTH: FECN, BECN, reserved */
};
#undef AT

/* Eight bytes of ones stand for the LRH. Headers up to the BTH are copied for masking; the payload
 * is read in place. */
static uint32_t icrc_by_copy(const uint8_t *frame, uint32_t l3_at, uint32_t udp_at, uint32_t bth_at,
			     uint32_t end_at)
{
	uint8_t head[8 + 512];
	const uint32_t bth_end = bth_at + (uint32_t)sizeof(struct fc_bth);
	const uint32_t copied = (bth_end < end_at ? bth_end : end_at) - l3_at;

	if (copied > sizeof head - 8)
		return 0;
	memset(head, 0xff, 8);
	memcpy(head + 8, frame + l3_at, copied);
	uint8_t *at = head + 8;
	mask_ip(at);
	memset(at + (udp_at - l3_at) + offsetof(struct fc_udp, checksum), 0xff, 2);
	at[bth_at - l3_at + offsetof(struct fc_bth, ecn)] = 0xff;
	const uint32_t crc = chosen(~0u, head, 8 + copied, no_ones);
	return ~chosen(crc, frame + l3_at + copied, end_at - l3_at - copied, no_ones);
}

uint32_t fc_icrc(const uint8_t *frame, uint32_t l3_at, uint32_t udp_at, uint32_t bth_at,
		 uint32_t end_at)
{
	const bool ipv4 = frame[l3_at] >> 4 == 4;
	const size_t ip_bytes = ipv4 ? sizeof(struct fc_ipv4) : sizeof(struct fc_ipv6);

	if (FC_UNLIKELY(udp_at - l3_at != ip_bytes || bth_at - udp_at != sizeof(struct fc_udp) ||
			l3_at < 8 || end_at - l3_at < ONES_BYTES - 8))
		return icrc_by_copy(frame, l3_at, udp_at, bth_at, end_at);
	return ~chosen(~0u, frame + l3_at - 8, end_at - l3_at + 8,
		       (ipv4 ? ones_ipv4 : ones_ipv6) + ONES_BYTES);
}

static uint32_t copy_then_icrc(uint8_t *to, const uint8_t *frame, size_t bytes, uint32_t l3_at,
			       uint32_t end_at)
{
	const uint32_t ip_bytes =
		frame[l3_at] >> 4 == 4 ? sizeof(struct fc_ipv4) : sizeof(struct fc_ipv6);

	fc_copy_stream(to, frame, bytes);
	return fc_icrc(frame, l3_at, l3_at + ip_bytes,
		       l3_at + ip_bytes + (uint32_t)sizeof(struct fc_udp), end_at);
}

#if defined(__x86_64__)
/* In blocks of the frame, each loaded once. Zeros before a message do not change its CRC from state
 * 0, and state ~0 makes zeros of the first four bytes of ones. */
VCLMUL_TARGET static uint32_t icrc_in_copy(uint8_t *to, const uint8_t *frame, size_t bytes,
					   uint32_t l3_at, uint32_t end_at)
{
	if (FC_UNLIKELY(l3_at < 8 || l3_at + 4 - 8 >= ONES_BYTES || end_at < 256))
		return copy_then_icrc(to, frame, bytes, l3_at, end_at);
	const __m512i far = by_distance(FOLD_2048_HIGH, FOLD_2048_LOW);
	const uint8_t *ones =
		(frame[l3_at] >> 4 == 4 ? ones_ipv4 : ones_ipv6) + ONES_BYTES - (l3_at - 8);
	const uint8_t *p = frame;
	size_t count = end_at;
	__m512i x[4];

	for (int lane = 0; lane < 4; lane++, p += 64, to += 64) {
		x[lane] = _mm512_loadu_si512(p);
		_mm512_stream_si512((__m512i *)to, x[lane]);
	}
	x[0] = _mm512_maskz_mov_epi8(~0ull << (l3_at - 8 + 4),
				     _mm512_or_si512(x[0], _mm512_loadu_si512(ones)));
	x[1] = _mm512_or_si512(x[1], _mm512_loadu_si512(ones + ONES_BYTES));
	for (count -= 256; count >= 256; count -= 256)
		for (int lane = 0; lane < 4; lane++, p += 64, to += 64) {
			const __m512i block = _mm512_loadu_si512(p);

			_mm512_stream_si512((__m512i *)to, block);
			x[lane] = fold512(x[lane], far, block);
		}
	fc_copy_stream(to, p, bytes - (size_t)(p - frame));
	return ~finish512(join512(x), p, count);
}
#endif

static uint32_t (*chosen_copy)(uint8_t *, const uint8_t *, size_t, uint32_t,
			       uint32_t) = copy_then_icrc;

uint32_t fc_copy_with_icrc(uint8_t *to, const uint8_t *frame, size_t bytes, uint32_t l3_at,
			   uint32_t end_at)
{
	return chosen_copy(to, frame, bytes, l3_at, end_at);
}

__attribute__((constructor)) static void choose(void)
{
	build_table();
#if defined(__x86_64__)
	const char *wish = getenv("FLOWCHECK_CRC");

	__builtin_cpu_init();
	if (wish && !strcmp(wish, "table"))
		return;
	const bool wide =
		__builtin_cpu_supports("vpclmulqdq") && !(wish && !strcmp(wish, "pclmul"));

	if (wide && __builtin_cpu_supports("avx512bw") && !(wish && !strcmp(wish, "vpclmul256"))) {
		chosen = run_vpclmul;
		chosen_name = "vpclmul";
		if (!getenv("FLOWCHECK_COPY")) /* else: a lesser copy */
			chosen_copy = icrc_in_copy;
	} else if (wide && __builtin_cpu_supports("avx2")) {
		chosen = run_vpclmul256;
		chosen_name = "vpclmul256";
	} else if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
		chosen = run_pclmul;
		chosen_name = "pclmul";
	}
#endif
}
