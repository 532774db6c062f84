#include "fc_ll.h"

#include <stdbool.h>
#include <string.h>

#include "fc_common.h"
#include "fc_nccl.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* past: `data` is 64-byte aligned, and whole cache lines of it are written past the caches. ahead: as
 * of fc_copy_past(). */
typedef size_t (*unpack_fn)(uint8_t *data, const uint8_t *lines, size_t data_bytes, uint32_t flag,
			    bool past, const uint8_t *ahead);

static size_t unpack_plain(uint8_t *data, const uint8_t *lines, size_t data_bytes, uint32_t flag,
			   bool past, const uint8_t *ahead)
{
	const size_t count = (data_bytes + 7) / 8;

	for (size_t i = 0; i < count; i++) {
		struct fc_ll_line line;
		memcpy(&line, lines + i * sizeof line, sizeof line);
		if (line.flag1 != flag || line.flag2 != flag)
			return i;
		const uint32_t words[2] = { line.data1, line.data2 };
		const size_t left = data_bytes - i * 8;
		memcpy(data + i * 8, words, left < 8 ? left : 8);
	}
	return count;
}

#if defined(__x86_64__)
/* Vector implementations process whole groups of lines; a group with a wrong flag, and the rest at
 * the end, use the plain one. */
static size_t unpack_rest(uint8_t *data, const uint8_t *lines, size_t data_bytes, uint32_t flag,
			  size_t done)
{
	if (FC_LIKELY(done * 8 == data_bytes))
		return done;
	return done + unpack_plain(data + done * 8, lines + done * 16, data_bytes - done * 8, flag,
				   false, NULL);
}

__attribute__((target("avx2"))) static size_t unpack_avx2(uint8_t *data, const uint8_t *lines,
							  size_t data_bytes, uint32_t flag,
							  bool past, const uint8_t *ahead)
{
	const __m256i want = _mm256_set1_epi32((int)flag);
	size_t done = 0;

	for (; done + 4 <= data_bytes / 8; done += 4) {
		if (ahead)
			__builtin_prefetch(ahead + done * 16);
		const __m256i a = _mm256_loadu_si256((const __m256i *)(lines + done * 16));
		const __m256i b = _mm256_loadu_si256((const __m256i *)(lines + done * 16 + 32));
		const __m256i even = _mm256_castps_si256(
			_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
		const __m256i odd = _mm256_castps_si256(
			_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd));
		if (_mm256_movemask_epi8(_mm256_cmpeq_epi32(odd, want)) != -1)
			break;
		const __m256i words = _mm256_permute4x64_epi64(even, 0xd8);
		if (past)
			_mm256_stream_si256((__m256i *)(data + done * 8), words);
		else
			_mm256_storeu_si256((__m256i *)(data + done * 8), words);
	}
	return unpack_rest(data, lines, data_bytes, flag, done);
}

__attribute__((target("avx512f"))) static size_t unpack_avx512(uint8_t *data, const uint8_t *lines,
							       size_t data_bytes, uint32_t flag,
							       bool past, const uint8_t *ahead)
{
	const __m512i want = _mm512_set1_epi32((int)flag);
	const __m512i even =
		_mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
	size_t done = 0;

	for (; done + 8 <= data_bytes / 8; done += 8) {
		if (ahead) {
			__builtin_prefetch(ahead + done * 16);
			__builtin_prefetch(ahead + done * 16 + 64);
		}
		const __m512i a = _mm512_loadu_si512(lines + done * 16);
		const __m512i b = _mm512_loadu_si512(lines + done * 16 + 64);
		const unsigned right = _mm512_mask_cmpeq_epi32_mask(0xaaaa, a, want) &
				       _mm512_mask_cmpeq_epi32_mask(0xaaaa, b, want);
		if (right != 0xaaaa)
			break;
		const __m512i words = _mm512_permutex2var_epi32(a, even, b);
		if (past)
			_mm512_stream_si512((__m512i *)(data + done * 8), words);
		else
			_mm512_storeu_si512(data + done * 8, words);
	}
	return unpack_rest(data, lines, data_bytes, flag, done);
}
#endif

static unpack_fn twin_function(int twin)
{
#if defined(__x86_64__)
	if (twin == 2)
		return __builtin_cpu_supports("avx512f") ? unpack_avx512 : NULL;
	if (twin == 1)
		return __builtin_cpu_supports("avx2") ? unpack_avx2 : NULL;
#endif
	return twin == 0 ? unpack_plain : NULL;
}

static int best_twin(void)
{
	int twin = 2;

	while (!twin_function(twin))
		twin--;
	return twin;
}

static unpack_fn best_function(void)
{
	/* Two threads that choose at the same time choose the same function. */
	static unpack_fn chosen;

	if (!chosen)
		chosen = twin_function(best_twin());
	return chosen;
}

size_t fc_ll_unpack(uint8_t *data, const uint8_t *lines, size_t data_bytes, uint32_t flag)
{
	return best_function()(data, lines, data_bytes, flag, false, NULL);
}

static size_t unpack_past(unpack_fn function, uint8_t *data, const uint8_t *lines,
			  size_t data_bytes, uint32_t flag, const uint8_t *ahead)
{
	const size_t head = -(uintptr_t)data % FC_CACHE_LINE_BYTES;

	/* Whole lines never come to a multiple of a cache line, or not before the end. */
	if (head % 8 || head >= data_bytes)
		return function(data, lines, data_bytes, flag, false, ahead);
	const size_t before = head / 8;
	const size_t done = head ? function(data, lines, head, flag, false, NULL) : 0;
	if (done < before)
		return done;
	return before + function(data + head, lines + before * sizeof(struct fc_ll_line),
				 data_bytes - head, flag, true, ahead);
}

size_t fc_ll_unpack_past(uint8_t *data, const uint8_t *lines, size_t data_bytes, uint32_t flag,
			 const uint8_t *ahead)
{
	return unpack_past(best_function(), data, lines, data_bytes, flag, ahead);
}

size_t fc_ll_unpack_by(int twin, int past, uint8_t *data, const uint8_t *lines, size_t data_bytes,
		       uint32_t flag)
{
	const unpack_fn function = twin_function(twin);

	if (!function)
		return SIZE_MAX;
	/* Fetching the lines themselves, so that this is tried too. */
	return past ? unpack_past(function, data, lines, data_bytes, flag, lines)
		    : function(data, lines, data_bytes, flag, false, NULL);
}

const char *fc_ll_name(void)
{
	static const char *const names[] = { "plain", "avx2", "avx512" };

	return names[best_twin()];
}
