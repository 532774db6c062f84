#include "fc_copy.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fc_common.h"

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f"))) static void copy_avx512(void *destination, const void *source,
							   size_t bytes, const uint8_t *ahead)
{
	uint8_t *to = destination;
	const uint8_t *from = source;

	if (ahead)
		for (; bytes >= 64; bytes -= 64, to += 64, from += 64, ahead += 64) {
			__builtin_prefetch(ahead);
			_mm512_stream_si512((__m512i *)to, _mm512_loadu_si512(from));
		}
	for (; bytes >= 64; bytes -= 64, to += 64, from += 64)
		_mm512_stream_si512((__m512i *)to, _mm512_loadu_si512(from));
	memcpy(to, from, bytes);
}

__attribute__((target("avx2"))) static void copy_avx2(void *destination, const void *source,
						      size_t bytes, const uint8_t *ahead)
{
	uint8_t *to = destination;
	const uint8_t *from = source;

	for (; bytes >= 64; bytes -= 64, to += 64, from += 64) {
		const __m256i low = _mm256_loadu_si256((const __m256i *)from);
		const __m256i high = _mm256_loadu_si256((const __m256i *)(from + 32));
		if (ahead) {
			__builtin_prefetch(ahead);
			ahead += 64;
		}
		_mm256_stream_si256((__m256i *)to, low);
		_mm256_stream_si256((__m256i *)(to + 32), high);
	}
	memcpy(to, from, bytes);
}

void fc_copy_fence(void)
{
	_mm_sfence();
}
#else
void fc_copy_fence(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}
#endif

static void copy_plain(void *destination, const void *source, size_t bytes, const uint8_t *ahead)
{
	for (size_t at = 0; ahead && at < bytes; at += FC_CACHE_LINE_BYTES)
		__builtin_prefetch(ahead + at);
	memcpy(destination, source, bytes);
}

static void (*chosen)(void *, const void *, size_t, const uint8_t *) = copy_plain;
static const char *chosen_name = "plain";

__attribute__((constructor)) static void choose(void)
{
#if defined(__x86_64__)
	const char *wish = getenv("FLOWCHECK_COPY");

	__builtin_cpu_init();
	if (wish && !strcmp(wish, "plain"))
		return;
	if (__builtin_cpu_supports("avx512f") && !(wish && !strcmp(wish, "avx2"))) {
		chosen = copy_avx512;
		chosen_name = "avx512";
	} else if (__builtin_cpu_supports("avx2")) {
		chosen = copy_avx2;
		chosen_name = "avx2";
	}
#endif
}

void fc_copy_stream(void *destination, const void *source, size_t bytes)
{
	chosen(destination, source, bytes, NULL);
}

void fc_copy_past(void *destination, const void *source, size_t bytes, const void *ahead)
{
	const size_t head = -(uintptr_t)destination % FC_CACHE_LINE_BYTES;

	if (bytes <= head) {
		memcpy(destination, source, bytes);
		return;
	}
	memcpy(destination, source, head);
	chosen((uint8_t *)destination + head, (const uint8_t *)source + head, bytes - head, ahead);
}

const char *fc_copy_name(void)
{
	return chosen_name;
}
