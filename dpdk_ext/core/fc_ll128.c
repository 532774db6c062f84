/* A warp transfers eight words per thread: 16 lines. Flags displace eight bytes of data in each
 * line; the thread next to the one with the flag carries them in a later line (NCCL
 * src/device/prims_ll128.h, loadRegsBegin and storeRegs). Each half group of eight lines is equal.
 * Before 2.10 threads read their words from shared memory and skipped the flags, so lines are
 * filled in order (src/collectives/device/prims_ll128.h, recvReduceSendCopy). */
#include "fc_ll128.h"

#include <string.h>

#include "fc_nccl.h"

enum {
	HALF_LINES = FC_LL128_GROUP_LINES / 2,
	QUARTER_LINES = HALF_LINES / 2,
	HALF_DATA = FC_LL128_GROUP_DATA / 2,
	PIECE = 128, /* data of four lines together with the tails of the next four */
	SHORT = 112, /* data of a line whose last eight bytes belong to another piece */
	WHOLE = 120,
};

uint32_t fc_ll128_flag(const uint8_t *line)
{
	uint32_t flag;
	memcpy(&flag, line + FC_LL128_LINE_DATA, sizeof flag);
	return flag;
}

struct fc_ll128_line fc_ll128_line(unsigned line, bool linear)
{
	if (linear)
		return (struct fc_ll128_line){ .run_at = (uint16_t)(WHOLE * line),
					       .run_bytes = WHOLE };

	const unsigned half = line / HALF_LINES, in_half = line % HALF_LINES;
	const unsigned k = in_half % QUARTER_LINES, base = half * HALF_DATA;

	if (in_half < QUARTER_LINES)
		return (struct fc_ll128_line){ .run_at = (uint16_t)(base + PIECE * k),
					       .run_bytes = WHOLE };
	return (struct fc_ll128_line){
		.run_at = (uint16_t)(base + QUARTER_LINES * PIECE + SHORT * k),
		.run_bytes = SHORT,
		.tail_at = (uint16_t)(base + PIECE * k + WHOLE),
	};
}

bool fc_ll128_unpack(uint8_t *data, const uint8_t *group, uint32_t flag)
{
	uint32_t wrong = 0;

	for (unsigned half = 0; half < 2; half++, data += HALF_DATA) {
		for (unsigned k = 0; k < QUARTER_LINES; k++) {
			const uint8_t *front =
				group + (half * HALF_LINES + k) * FC_LL128_LINE_BYTES;
			const uint8_t *back = front + QUARTER_LINES * FC_LL128_LINE_BYTES;
			wrong |= fc_ll128_flag(front) ^ flag;
			wrong |= fc_ll128_flag(back) ^ flag;
			memcpy(data + PIECE * k, front, WHOLE);
			memcpy(data + PIECE * k + WHOLE, back + SHORT, PIECE - WHOLE);
			memcpy(data + QUARTER_LINES * PIECE + SHORT * k, back, SHORT);
		}
	}
	return !wrong;
}

bool fc_ll128_unpack_linear(uint8_t *data, const uint8_t *group, uint32_t flag)
{
	uint32_t wrong = 0;

	for (unsigned line = 0; line < FC_LL128_GROUP_LINES; line++) {
		wrong |= fc_ll128_flag(group) ^ flag;
		memcpy(data, group, WHOLE);
		group += FC_LL128_LINE_BYTES;
		data += WHOLE;
	}
	return !wrong;
}
