/* xxh3_128 of long inputs as they are made, in whole runs; its short forms are not here. */
#ifndef FC_DIGEST_H
#define FC_DIGEST_H

#include <stdint.h>
#include <string.h>

#include "fc_step_twin.h"

/* Longer inputs have the form below (xxHash's specification, XXH3, "large inputs"). */
#define FC_DIGEST_SHORT_MAX 240u

struct fc_digest {
	uint64_t sums[8];
	uint64_t bytes; /* of the whole input */
	uint64_t seen;
	/* The last stripe of what was summed, then what is not summed yet: the last run of the
	 * input is never a whole one. */
	uint8_t held[FC_DIGEST_STRIPE + FC_DIGEST_RUN];
};

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

/* `bytes`: of all that will come, more than FC_DIGEST_SHORT_MAX. */
void fc_digest_begin(struct fc_digest *digest, uint64_t bytes);
/* The next part: whole runs, but for the last part. `to` and `from` as in fc_step_twin.h; returns
 * how many bytes went there. */
uint64_t fc_digest_add(struct fc_digest *digest, const struct fc_step_twin *twin,
		       const uint8_t *data, uint64_t bytes, uint8_t *to, const uint8_t *from);
void fc_digest_end(struct fc_digest *digest, uint8_t *out);

#endif
