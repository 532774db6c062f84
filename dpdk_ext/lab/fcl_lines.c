#include <string.h>

#include "../core/fc_nccl.h"
#include "fcl_comm.h"
#include "fcl_lines.h"

enum {
	LL_DATA_BYTES = 8,
	LINE_BYTES = 128, /* an LL128 line */
	FLAG_OFFSET = 120,
	GROUP_LINES = 16, /* what one warp stores at a time */
	GROUP_BYTES = GROUP_LINES * LINE_BYTES,
	GROUP_DATA_BYTES = GROUP_LINES * FLAG_OFFSET,
	HALF_LINES = GROUP_LINES / 2,
	HALF_DATA_BYTES = GROUP_DATA_BYTES / 2,
	PIECE_LINES =
		4, /* lines of a half that hold 120 consecutive bytes each; then as many of 112 + 8 */
	SHORT_BYTES = 112,
	UNUSED = 0xA5,
};

uint64_t fcl_wire_bytes(uint32_t protocol, uint64_t bytes)
{
	switch (protocol) {
	case FCL_LL:
		return (bytes + LL_DATA_BYTES - 1) / LL_DATA_BYTES * sizeof(struct fc_ll_line);
	case FCL_LL128:
		return (bytes + GROUP_DATA_BYTES - 1) / GROUP_DATA_BYTES * GROUP_BYTES;
	default:
		return bytes;
	}
}

static void pack_ll(struct fc_ll_line *line, const uint8_t *data, uint64_t bytes, uint32_t flag)
{
	for (; bytes >= LL_DATA_BYTES; bytes -= LL_DATA_BYTES, data += LL_DATA_BYTES, line++) {
		line->flag1 = line->flag2 = flag;
		memcpy(&line->data1, data, 4);
		memcpy(&line->data2, data + 4, 4);
	}
	if (bytes > 0) {
		uint8_t rest[LL_DATA_BYTES];

		memset(rest, UNUSED, sizeof rest);
		memcpy(rest, data, bytes);
		pack_ll(line, rest, sizeof rest, flag);
	}
}

/* The flag displaces the last 8 bytes of each 128-byte piece to the end of the line four below. */
static void pack_group(uint8_t *group, const uint8_t *data, uint64_t flag)
{
	for (int line = 0; line < GROUP_LINES; line++)
		memcpy(group + line * LINE_BYTES + FLAG_OFFSET, &flag, sizeof flag);
	for (int half = 0; half < 2; half++) {
		uint8_t *lines = group + half * HALF_LINES * LINE_BYTES;
		const uint8_t *from = data + half * HALF_DATA_BYTES;

		for (int k = 0; k < PIECE_LINES; k++) {
			uint8_t *below = lines + (PIECE_LINES + k) * LINE_BYTES;

			memcpy(lines + k * LINE_BYTES, from + k * LINE_BYTES, FLAG_OFFSET);
			memcpy(below, from + PIECE_LINES * LINE_BYTES + k * SHORT_BYTES,
			       SHORT_BYTES);
			memcpy(below + SHORT_BYTES, from + k * LINE_BYTES + FLAG_OFFSET, 8);
		}
	}
}

static void unpack_group(uint8_t *data, const uint8_t *group)
{
	for (int half = 0; half < 2; half++) {
		const uint8_t *lines = group + half * HALF_LINES * LINE_BYTES;
		uint8_t *to = data + half * HALF_DATA_BYTES;

		for (int k = 0; k < PIECE_LINES; k++) {
			const uint8_t *below = lines + (PIECE_LINES + k) * LINE_BYTES;

			memcpy(to + k * LINE_BYTES, lines + k * LINE_BYTES, FLAG_OFFSET);
			memcpy(to + k * LINE_BYTES + FLAG_OFFSET, below + SHORT_BYTES, 8);
			memcpy(to + PIECE_LINES * LINE_BYTES + k * SHORT_BYTES, below, SHORT_BYTES);
		}
	}
}

void fcl_pack(uint32_t protocol, void *slot, const void *data, uint64_t bytes, uint64_t step)
{
	const uint8_t *from = data;
	uint8_t *group = slot;

	if (protocol == FCL_LL) {
		pack_ll(slot, data, bytes, (uint32_t)(step + 1));
		return;
	}
	for (; bytes >= GROUP_DATA_BYTES; bytes -= GROUP_DATA_BYTES) {
		pack_group(group, from, step + 1);
		group += GROUP_BYTES;
		from += GROUP_DATA_BYTES;
	}
	if (bytes > 0) {
		uint8_t rest[GROUP_DATA_BYTES];

		memset(rest, UNUSED, sizeof rest);
		memcpy(rest, from, bytes);
		pack_group(group, rest, step + 1);
	}
}

int fcl_lines_proven(uint32_t protocol, const void *slot, uint64_t wire_bytes, uint64_t step)
{
	const struct fc_ll_line *line = slot;
	const uint8_t *flag = (const uint8_t *)slot + FLAG_OFFSET;
	uint64_t wanted = step + 1, wrong = 0;

	if (protocol == FCL_LL)
		for (uint64_t i = 0; i < wire_bytes / sizeof *line; i++)
			wrong |= (line[i].flag1 ^ (uint32_t)wanted) |
				 (line[i].flag2 ^ (uint32_t)wanted);
	if (protocol == FCL_LL128)
		for (uint64_t i = 0; i < wire_bytes / LINE_BYTES; i++, flag += LINE_BYTES)
			wrong |= memcmp(flag, &wanted, sizeof wanted) != 0;
	return wrong == 0;
}

void fcl_unpack(uint32_t protocol, void *data, const void *slot, uint64_t bytes)
{
	uint8_t *to = data;

	if (protocol == FCL_LL) {
		const struct fc_ll_line *line = slot;

		for (; bytes >= LL_DATA_BYTES;
		     bytes -= LL_DATA_BYTES, to += LL_DATA_BYTES, line++) {
			memcpy(to, &line->data1, 4);
			memcpy(to + 4, &line->data2, 4);
		}
		memcpy(to, &line->data1, bytes < 4 ? bytes : 4);
		if (bytes > 4)
			memcpy(to + 4, &line->data2, bytes - 4);
		return;
	}
	for (const uint8_t *group = slot; bytes > 0; group += GROUP_BYTES) {
		uint8_t whole[GROUP_DATA_BYTES];
		uint64_t length = bytes < GROUP_DATA_BYTES ? bytes : GROUP_DATA_BYTES;

		unpack_group(whole, group);
		memcpy(to, whole, length);
		to += length;
		bytes -= length;
	}
}
