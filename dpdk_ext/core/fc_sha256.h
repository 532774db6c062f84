/* SHA-256 of two streams at once with the CPU's SHA instructions: one stream computes while the
 * other waits. Read by the compiler and by cffi. */
#ifndef FC_SHA256_H
#define FC_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* State of a hash. */
struct fc_sha256 {
	uint32_t words[8];
	uint32_t reserved;
	uint32_t pending_bytes; /* bytes of an incomplete block */
	uint64_t bytes;
	uint8_t pending[64];
};

/* Whether this CPU has the instructions; required by all other functions here. */
bool fc_sha256_here(void);

void fc_sha256_begin(struct fc_sha256 *sum);

/* Adds `bytes` from `data` to `sum`, and as many from `other_data` to `other` unless that is NULL.
 * `sum` and `other` must be different; the data may be the same. */
void fc_sha256_add(struct fc_sha256 *sum, const uint8_t *data, struct fc_sha256 *other,
		   const uint8_t *other_data, size_t bytes);

/* Adds `bytes` from `data` to both hashes and, unless NULL, to `crc` (as fc_crc32), and copies
 * them to `to`, in one pass. */
void fc_sha256_pour(struct fc_sha256 *sum, struct fc_sha256 *other, const uint8_t *data,
		    uint8_t *to, size_t bytes, uint32_t *crc);

/* Writes the 32 bytes of the hash; `sum` is undefined afterwards. */
void fc_sha256_end(struct fc_sha256 *sum, uint8_t *out);

#endif
