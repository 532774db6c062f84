/* xxh3_128 of long inputs in whole runs, as they are made; its short forms are not here. */
#ifndef FC_DIGEST_H
#define FC_DIGEST_H

#include <stdint.h>
#include <string.h>

#include "fc_step_twin.h"

/* Longer inputs have the form below (xxHash's specification, XXH3, "large inputs"). */
#define FC_DIGEST_SHORT_MAX 240u

static inline uint64_t fc_digest_le64(const uint8_t *p)
{
	uint64_t value;

	memcpy(&value, p, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	value = __builtin_bswap64(value);
#endif
	return value;
}

static inline void fc_digest_stripe(uint64_t *sums, const uint8_t *stripe, const uint8_t *secret)
{
	for (uint32_t i = 0; i < 8; i++) {
		const uint64_t value = fc_digest_le64(stripe + 8 * i);
		const uint64_t keyed = value ^ fc_digest_le64(secret + 8 * i);
		sums[i ^ 1] += value;
		sums[i] += (keyed & 0xffffffffu) * (keyed >> 32);
	}
}

/* Eight sums; then every run but the last, which is of 1 to FC_RUN_BYTES bytes, goes into them
 * (fc_step_twin.h). */
void fc_digest_begin(uint64_t *sums);
/* `last`: the last run, behind the line that came before it; `bytes`: of everything, more than
 * FC_DIGEST_SHORT_MAX. The sums are of no use afterwards. */
void fc_digest_end(uint64_t *sums, const uint8_t *last, uint64_t bytes, uint8_t *out);

#endif
