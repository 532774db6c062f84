/* sha256 of two streams at once, by the instructions that this CPU has for it: what one
 * stream waits for, the other computes. Read by the compiler and by cffi. */
#ifndef FC_SHA256_H
#define FC_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A sum that goes on. */
struct fc_sha256 {
	uint32_t words[8];
	uint32_t reserved;
	uint32_t held_bytes; /* of a block that is not whole yet */
	uint64_t bytes;
	uint8_t held[64];
};

/* Whether this CPU has the instructions; nothing else here may be called without. */
bool fc_sha256_here(void);

void fc_sha256_begin(struct fc_sha256 *sum);

/* Adds `bytes` from `data` to `sum`, and as many from `other_data` to `other` unless that
 * is NULL. The two sums are two objects; the data may be the same. */
void fc_sha256_add(struct fc_sha256 *sum, const uint8_t *data, struct fc_sha256 *other,
		   const uint8_t *other_data, size_t bytes);

/* Adds `bytes` from `data` to both sums and, unless that is NULL, to `crc` as fc_crc32 does, and
 * copies them to `to`: one pass. */
void fc_sha256_pour(struct fc_sha256 *sum, struct fc_sha256 *other, const uint8_t *data,
		    uint8_t *to, size_t bytes, uint32_t *crc);

/* The 32 bytes of what was added; `sum` is worth nothing behind this. */
void fc_sha256_end(struct fc_sha256 *sum, uint8_t *out);

#endif
