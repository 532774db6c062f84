/* LL lines to data, flags checked. Read by the compiler and by cffi. */
#ifndef FC_LL_H
#define FC_LL_H

#include <stddef.h>
#include <stdint.h>

/* Writes `data_bytes` bytes to `data`, 8 of every 16-byte line of `lines`, the
 * last line perhaps in part; reads ceil(data_bytes / 8) lines. Stops at the first
 * line whose two flags are not both `flag`: that line was never written by its
 * sender. Returns the lines unpacked. */
size_t fc_ll_unpack(uint8_t *data, const uint8_t *lines, size_t data_bytes, uint32_t flag);

/* The twins fc_ll_unpack chooses from: 0 plain, 1 avx2, 2 avx512. Returns SIZE_MAX
 * where this CPU cannot run the one asked for. For tests and benches. */
size_t fc_ll_unpack_by(int twin, uint8_t *data, const uint8_t *lines, size_t data_bytes,
		       uint32_t flag);
const char *fc_ll_name(void);

#endif
