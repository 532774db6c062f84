/* Copy into memory that this core will not read soon: past the caches. */
#ifndef FC_COPY_H
#define FC_COPY_H

#include <stddef.h>

/* `destination` 64-byte aligned. The bytes are visible to others only after
 * fc_copy_fence() and a release. Short copies go through the caches. */
void fc_copy_stream(void *destination, const void *source, size_t bytes);
void fc_copy_fence(void);

/* Which twin runs: "avx512", "avx2" or "plain". FLOWCHECK_COPY in the
 * environment chooses a lesser one, for tests and benches. */
const char *fc_copy_name(void);

#endif
