/* Lines summed and written, on every CPU. */
#include <string.h>

#include "fc_digest.h"
#include "fc_step_variant.h"

struct v_sums {
	uint8_t lanes[FC_DIGEST_PAIR];
};

FC_INLINE struct v_sums sums_of(const uint64_t *lanes)
{
	struct v_sums own;

	memcpy(own.lanes, lanes, sizeof own.lanes);
	return own;
}

FC_INLINE void keep_sums(const struct v_sums *sums, uint64_t *to)
{
	memcpy(to, sums->lanes, sizeof sums->lanes);
}

FC_INLINE void sum_pair(struct v_sums *sums, const uint8_t *bytes)
{
	fc_digest_round(sums->lanes, bytes);
	fc_digest_round(sums->lanes + FC_DIGEST_LANE, bytes + FC_DIGEST_LANE);
}

/* A cache line. */
struct v_line {
	const uint8_t *at;
};

FC_INLINE struct v_line line_at(const uint8_t *bytes)
{
	return (struct v_line){ bytes };
}

FC_INLINE void sum_line(struct v_sums *sums, struct v_line line)
{
	sum_pair(sums, line.at);
	sum_pair(sums, line.at + FC_DIGEST_PAIR);
}

FC_INLINE void stream_line(uint8_t *to, struct v_line line)
{
	memcpy(to, line.at, FC_LINE);
}
