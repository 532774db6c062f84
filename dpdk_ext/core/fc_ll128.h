/* LL128 lines as they lie on the wire since NCCL 2.10, and before. Not for cffi. */
#ifndef FC_LL128_H
#define FC_LL128_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fc_plan.h"

/* Of an enum fc_protocol. */
static inline bool fc_is_ll128(uint8_t protocol)
{
	return protocol == FC_PROTOCOL_LL128 || protocol == FC_PROTOCOL_LL128_LINEAR;
}

/* Where the data of one line belongs in its group's data, in bytes. */
struct fc_ll128_line {
	uint16_t run_at, run_bytes; /* its bytes from the front on */
	uint16_t tail_at;           /* its last 8 data bytes, if they lie elsewhere; else 0 */
};

/* Of line `line` of a group, 0 to 15. linear: before 2.10, one line's data behind the other's. */
struct fc_ll128_line fc_ll128_line(unsigned line, bool linear);

/* Unpacks one group: 2048 wire bytes to 1920 data bytes. False, and nothing is sure of `data`,
 * where a line does not carry `flag`. */
bool fc_ll128_unpack(uint8_t *data, const uint8_t *group, uint32_t flag);

/* The same of a group of before 2.10. */
bool fc_ll128_unpack_linear(uint8_t *data, const uint8_t *group, uint32_t flag);

/* The low half of a line's flag: step + 1 of the connection. */
uint32_t fc_ll128_flag(const uint8_t *line);

#endif
