#include "fc_lanes_plain.h"
/* The lanes come first. */
#include "fc_step_kernels.h"

#include "fc_digest.h"

static void digest(uint64_t *sums, const uint8_t *data, size_t runs, uint8_t *to,
		   const uint8_t *from)
{
	if (to)
		memcpy(to, from, runs * FC_DIGEST_RUN);
	for (; runs; runs--, data += FC_DIGEST_RUN) {
		for (uint32_t i = 0; i < FC_DIGEST_RUN / FC_DIGEST_STRIPE; i++)
			fc_digest_stripe(sums, data + FC_DIGEST_STRIPE * i,
					 fc_digest_secret + 8 * i);
		const uint8_t *secret = fc_digest_secret + FC_DIGEST_SECRET - FC_DIGEST_STRIPE;
		for (uint32_t i = 0; i < 8; i++)
			sums[i] = (sums[i] ^ sums[i] >> 47 ^ fc_digest_le64(secret + 8 * i)) *
				  FC_DIGEST_PRIME32_1;
	}
}

const struct fc_step_twin fc_step_plain = { "plain", take, roots, digest };
