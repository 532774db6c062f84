/* Unpacks LL lines and checks their flags. Read by the compiler and by cffi. */
#ifndef FC_LL_H
#define FC_LL_H

#include <stddef.h>
#include <stdint.h>

/* Writes `data_bytes` bytes to `data`, 8 from each 16-byte line of `lines`, the last line perhaps
 * in part; reads ceil(data_bytes / 8) lines. Stops at the first line whose two flags are not both
 * `flag`: its sender has not written it. Returns the number of unpacked lines. */
size_t fc_ll_unpack(uint8_t *data, const uint8_t *lines, size_t data_bytes, uint32_t flag);

/* The same past the caches, to memory that this core will not read soon. Other threads see the bytes
 * only after fc_copy_fence() and a release. ahead: as of fc_copy_past(). */
size_t fc_ll_unpack_past(uint8_t *data, const uint8_t *lines, size_t data_bytes, uint32_t flag,
			 const uint8_t *ahead);

/* The implementations of both (past: of the second): 0 plain, 1 avx2, 2 avx512. Returns SIZE_MAX if this CPU
 * does not support it. For tests and benchmarks. */
size_t fc_ll_unpack_by(int twin, int past, uint8_t *data, const uint8_t *lines, size_t data_bytes,
		       uint32_t flag);
const char *fc_ll_name(void);

#endif
