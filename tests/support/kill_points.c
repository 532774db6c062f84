/* Hooks in place of the thread sanitizer's runtime: every store of the instrumented
 * core is told here before it happens, copies word by word, and those that hit a
 * watched map are kept in order. kill_points.py says how it is used. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* This file is compiled with the flags of the others. */
#pragma clang attribute push(__attribute__((disable_sanitizer_instrumentation)),                   \
			     apply_to = function)

#define MAPS_MAX 16
#define OFFSET_BITS 48

void *__real_memcpy(void *to, const void *from, size_t bytes);
void *__real_memmove(void *to, const void *from, size_t bytes);
void *__real_memset(void *to, int value, size_t bytes);

/* A word of a map, and what it holds once the store has happened. */
struct kept_store {
	uint64_t where; /* map << OFFSET_BITS | offset of the word */
	uint64_t value;
};

static struct {
	uint8_t *base;
	uint64_t bytes;
} maps[MAPS_MAX];
static unsigned maps_used;
static struct kept_store *kept;
static uint64_t kept_used, kept_room;
static bool keeping;
/* A store is told before it happens: its words are read when the next one comes. */
static uint8_t *pending;
static uint64_t pending_bytes;

static int map_of(const void *at)
{
	for (unsigned i = 0; i < maps_used; i++)
		if ((const uint8_t *)at >= maps[i].base &&
		    (const uint8_t *)at < maps[i].base + maps[i].bytes)
			return (int)i;
	return -1;
}

static void keep_word(int map, uint64_t offset)
{
	if (kept_used == kept_room) {
		kept_room = kept_room ? 2 * kept_room : 1 << 16;
		kept = realloc(kept, kept_room * sizeof *kept);
		if (!kept)
			abort();
	}
	kept[kept_used++] = (struct kept_store){ (uint64_t)map << OFFSET_BITS | offset,
						 *(uint64_t *)(maps[map].base + offset) };
}

static void keep(const uint8_t *at, uint64_t bytes)
{
	const int map = map_of(at);

	if (map < 0 || !bytes)
		return;
	const uint64_t from = (uint64_t)(at - maps[map].base);
	for (uint64_t offset = from & ~7ull; offset < from + bytes; offset += 8)
		keep_word(map, offset);
}

static void settle(void)
{
	if (pending_bytes)
		keep(pending, pending_bytes);
	pending_bytes = 0;
}

static void stored(void *at, uint64_t bytes)
{
	if (!keeping)
		return;
	settle();
	if (map_of(at) >= 0) {
		pending = at;
		pending_bytes = bytes;
	}
}

void kill_points_watch(void *base, uint64_t bytes)
{
	if (maps_used == MAPS_MAX)
		abort();
	maps[maps_used].base = base;
	maps[maps_used++].bytes = bytes;
}

void kill_points_forget(void)
{
	maps_used = 0;
	pending_bytes = 0;
}

void kill_points_begin(void)
{
	kept_used = 0;
	pending_bytes = 0;
	keeping = true;
}

uint64_t kill_points_end(void)
{
	settle();
	keeping = false;
	return kept_used;
}

const struct kept_store *kill_points_kept(void)
{
	return kept;
}

/* Bytes up to the end of the word that `at` lies in, at most `bytes`. */
static size_t in_word(const uint8_t *at, size_t bytes)
{
	const size_t room = 8 - (uintptr_t)at % 8;

	return bytes < room ? bytes : room;
}

void *__wrap_memcpy(void *to, const void *from, size_t bytes)
{
	uint8_t *at = to;

	if (!keeping || map_of(to) < 0)
		return __real_memcpy(to, from, bytes);
	for (size_t done = 0; done < bytes;) {
		const size_t part = in_word(at + done, bytes - done);
		stored(at + done, part);
		__real_memcpy(at + done, (const uint8_t *)from + done, part);
		done += part;
	}
	return to;
}

void *__wrap_memmove(void *to, const void *from, size_t bytes)
{
	if (!keeping || map_of(to) < 0)
		return __real_memmove(to, from, bytes);
	if ((uint8_t *)to <= (const uint8_t *)from)
		return __wrap_memcpy(to, from, bytes);
	for (size_t left = bytes; left;) {
		uint8_t *end = (uint8_t *)to + left;
		const size_t over = (uintptr_t)end % 8;
		size_t part = over ? over : 8;
		part = part < left ? part : left;
		left -= part;
		stored((uint8_t *)to + left, part);
		__real_memcpy((uint8_t *)to + left, (const uint8_t *)from + left, part);
	}
	return to;
}

void *__wrap_memset(void *to, int value, size_t bytes)
{
	uint8_t *at = to;

	if (!keeping || map_of(to) < 0)
		return __real_memset(to, value, bytes);
	for (size_t done = 0; done < bytes;) {
		const size_t part = in_word(at + done, bytes - done);
		stored(at + done, part);
		__real_memset(at + done, value, part);
		done += part;
	}
	return to;
}

void *__tsan_memcpy(void *to, const void *from, size_t bytes)
{
	return __wrap_memcpy(to, from, bytes);
}

void *__tsan_memmove(void *to, const void *from, size_t bytes)
{
	return __wrap_memmove(to, from, bytes);
}

void *__tsan_memset(void *to, int value, size_t bytes)
{
	return __wrap_memset(to, value, bytes);
}

/* What clang calls: llvm/lib/Transforms/Instrumentation/ThreadSanitizer.cpp */
#define WRITES(size)                                                                               \
	void __tsan_write##size(void *at)                                                          \
	{                                                                                          \
		stored(at, size);                                                                  \
	}                                                                                          \
	void __tsan_unaligned_write##size(void *at)                                                \
	{                                                                                          \
		stored(at, size);                                                                  \
	}                                                                                          \
	void __tsan_read_write##size(void *at)                                                     \
	{                                                                                          \
		stored(at, size);                                                                  \
	}                                                                                          \
	void __tsan_unaligned_read_write##size(void *at)                                           \
	{                                                                                          \
		stored(at, size);                                                                  \
	}                                                                                          \
	void __tsan_read##size(void *at)                                                           \
	{                                                                                          \
		(void)at;                                                                          \
	}                                                                                          \
	void __tsan_unaligned_read##size(void *at)                                                 \
	{                                                                                          \
		(void)at;                                                                          \
	}

WRITES(1)
WRITES(2)
WRITES(4)
WRITES(8)
WRITES(16)

#define ATOMICS(bits)                                                                              \
	uint##bits##_t __tsan_atomic##bits##_load(const uint##bits##_t *at, int order)             \
	{                                                                                          \
		(void)order;                                                                       \
		return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                      \
	}                                                                                          \
	void __tsan_atomic##bits##_store(uint##bits##_t *at, uint##bits##_t value, int order)      \
	{                                                                                          \
		(void)order;                                                                       \
		stored(at, bits / 8);                                                              \
		__atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                     \
	}                                                                                          \
	uint##bits##_t __tsan_atomic##bits##_exchange(uint##bits##_t *at, uint##bits##_t value,    \
						      int order)                                   \
	{                                                                                          \
		(void)order;                                                                       \
		stored(at, bits / 8);                                                              \
		return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                           \
	}                                                                                          \
	uint##bits##_t __tsan_atomic##bits##_fetch_add(uint##bits##_t *at, uint##bits##_t value,   \
						       int order)                                  \
	{                                                                                          \
		(void)order;                                                                       \
		stored(at, bits / 8);                                                              \
		return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                            \
	}                                                                                          \
	uint##bits##_t __tsan_atomic##bits##_fetch_or(uint##bits##_t *at, uint##bits##_t value,    \
						      int order)                                   \
	{                                                                                          \
		(void)order;                                                                       \
		stored(at, bits / 8);                                                              \
		return __atomic_fetch_or(at, value, __ATOMIC_SEQ_CST);                             \
	}                                                                                          \
	int __tsan_atomic##bits##_compare_exchange_strong(                                         \
		uint##bits##_t *at, uint##bits##_t *expected, uint##bits##_t value, int order,     \
		int failed)                                                                        \
	{                                                                                          \
		(void)order, (void)failed;                                                         \
		stored(at, bits / 8);                                                              \
		return __atomic_compare_exchange_n(at, expected, value, 0, __ATOMIC_SEQ_CST,       \
						   __ATOMIC_SEQ_CST);                              \
	}                                                                                          \
	uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(                                 \
		uint##bits##_t *at, uint##bits##_t expected, uint##bits##_t value, int order,      \
		int failed)                                                                        \
	{                                                                                          \
		__tsan_atomic##bits##_compare_exchange_strong(at, &expected, value, order,         \
							      failed);                             \
		return expected;                                                                   \
	}

ATOMICS(8)
ATOMICS(16)
ATOMICS(32)
ATOMICS(64)

void __tsan_atomic_thread_fence(int order)
{
	(void)order;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void __tsan_atomic_signal_fence(int order)
{
	(void)order;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

void __tsan_init(void)
{
}

void __tsan_func_entry(void *from)
{
	(void)from;
}

void __tsan_func_exit(void)
{
}

#pragma clang attribute pop
