/* Layout of LL128 lines since NCCL 2.10, and before. Not read by cffi. */
#ifndef FC_LL128_H
#define FC_LL128_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fc_plan.h"

/* protocol: of enum fc_protocol. */
static inline bool fc_is_ll128(uint8_t protocol)
{
	return protocol == FC_PROTOCOL_LL128 || protocol == FC_PROTOCOL_LL128_LINEAR;
}

/* Position of the data of one line in its group's data, in bytes. */
struct fc_ll128_line {
	uint16_t run_at, run_bytes; /* its data from the front on */
	uint16_t tail_at;           /* position of its last 8 data bytes, if elsewhere; else 0 */
};

/* Position of line `line` (0 to 15) of a group. linear: lines in order, as before 2.10. */
struct fc_ll128_line fc_ll128_line(unsigned line, bool linear);

/* Unpacks one group: 2048 wire bytes to 1920 data bytes. Returns false if a line does not have
 * `flag`; `data` is undefined then. */
bool fc_ll128_unpack(uint8_t *data, const uint8_t *group, uint32_t flag);

/* The same for a group of NCCL before 2.10. */
bool fc_ll128_unpack_linear(uint8_t *data, const uint8_t *group, uint32_t flag);

/* Lower half of a line's flag: step + 1 of the connection. */
uint32_t fc_ll128_flag(const uint8_t *line);

#endif
