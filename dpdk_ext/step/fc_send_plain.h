/* Lines of xxh3 summed and written, on every CPU. */
#include <string.h>

#include "fc_digest.h"
#include "fc_step_twin.h"

struct v_sums {
	uint64_t of[8];
};

FC_INLINE struct v_sums sums_of(const uint64_t *sums)
{
	struct v_sums own;

	memcpy(own.of, sums, sizeof own.of);
	return own;
}

/* A cache line. */
struct v_line {
	const uint8_t *at;
};

FC_INLINE struct v_line line_at(const uint8_t *bytes)
{
	return (struct v_line){ bytes };
}

FC_INLINE void sum_line(struct v_sums *sums, struct v_line line, size_t number)
{
	fc_digest_stripe(sums->of, line.at, fc_digest_secret + 8 * number);
}

FC_INLINE void mix_sums(const struct v_sums *sums, uint64_t *to)
{
	const uint8_t *secret = fc_digest_secret + FC_DIGEST_MIX;

	for (size_t i = 0; i < 8; i++)
		to[i] = (sums->of[i] ^ sums->of[i] >> 47 ^ fc_digest_le64(secret + 8 * i)) *
			FC_DIGEST_PRIME32_1;
}

FC_INLINE void stream_line(uint8_t *to, struct v_line line)
{
	memcpy(to, line.at, FC_LINE);
}
