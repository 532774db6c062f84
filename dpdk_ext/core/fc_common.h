/* Loads and stores that every file needs: big-endian fields, release and acquire, cache geometry.
 * No state; includes no header of the project. */
#ifndef FC_COMMON_H
#define FC_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FC_CACHE_LINE_BYTES 64
#define FC_HUGE_PAGE_BYTES (2u * 1024 * 1024)

/* A position is published (release) after the bytes it covers; the reader's acquire makes those
 * bytes visible. Each use names its counterpart in a comment. */
#define FC_LOAD_ACQUIRE(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define FC_STORE_RELEASE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

#define FC_LIKELY(x) __builtin_expect(!!(x), 1)
#define FC_UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline uint16_t fc_be16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t fc_be24(const uint8_t *p)
{
	return (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
}

static inline uint32_t fc_be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t fc_be64(const uint8_t *p)
{
	return (uint64_t)fc_be32(p) << 32 | fc_be32(p + 4);
}

#endif
