/* Copies to memory that this core will not read soon, bypassing the caches. */
#ifndef FC_COPY_H
#define FC_COPY_H

#include <stddef.h>

/* `destination` must be 64-byte aligned. Other threads see the bytes only after fc_copy_fence()
 * and a release. Short copies use the caches. */
void fc_copy_stream(void *destination, const void *source, size_t bytes);
/* The same for any destination. */
void fc_copy_past(void *destination, const void *source, size_t bytes);
void fc_copy_fence(void);

/* Which implementation runs: "avx512", "avx2" or "plain". The environment variable FLOWCHECK_COPY
 * selects a lesser one, for tests and benchmarks. */
const char *fc_copy_name(void);

#endif
