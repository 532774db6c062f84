/* Copies to memory that this core will not read soon, bypassing the caches. */
#ifndef FC_COPY_H
#define FC_COPY_H

#include <stddef.h>

/* `destination` must be 64-byte aligned. Other threads see the bytes only after fc_copy_fence()
 * and a release. Short copies use the caches. */
void fc_copy_stream(void *destination, const void *source, size_t bytes);
/* The same for any destination. ahead: what is read next, or NULL. As many bytes of it are fetched
 * meanwhile, line by line: stores past the caches and loads wait for the same few buffers, and a
 * block of prefetches before the copy holds them all. */
void fc_copy_past(void *destination, const void *source, size_t bytes, const void *ahead);
void fc_copy_fence(void);

/* Which implementation runs: "avx512", "avx2" or "plain". The environment variable FLOWCHECK_COPY
 * selects a lesser one, for tests and benchmarks. */
const char *fc_copy_name(void);

#endif
