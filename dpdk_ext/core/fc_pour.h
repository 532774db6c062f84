/* Bytes on their way into a file: copied and summed in one pass. Read by the compiler and by
 * cffi. */
#ifndef FC_POUR_H
#define FC_POUR_H

#include <stddef.h>
#include <stdint.h>

struct fc_sha256;

/* Copies `bytes` from `data` to `to`, and adds them to both sums and, unless that is NULL, to
 * `crc` as fc_crc32 does. Only where fc_sha256_here(). */
void fc_pour(uint8_t *to, const uint8_t *data, size_t bytes, struct fc_sha256 *sum,
	     struct fc_sha256 *other, uint32_t *crc);

#endif
