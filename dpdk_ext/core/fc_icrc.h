/* CRC-32 and the invariant CRC of RoCEv2 made of it. Read by the compiler and by cffi. */
#ifndef FC_ICRC_H
#define FC_ICRC_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32 of Ethernet, as zlib.crc32(bytes, before). The fastest twin of this CPU. */
uint32_t fc_crc32(uint32_t before, const uint8_t *bytes, size_t count);
/* The same by table alone: the twin every CPU has, and the tests' second opinion. */
uint32_t fc_crc32_table(uint32_t before, const uint8_t *bytes, size_t count);
/* Which twin fc_crc32 uses: "vpclmul", "pclmul" or "table". FLOWCHECK_CRC in the
 * environment chooses a lesser one, for tests and benches. */
const char *fc_crc32_name(void);

/* The ICRC that belongs behind `frame`[l3_at .. end_at): IP header, UDP, all
 * behind it but the ICRC itself. Fields routers rewrite count as ones; so does
 * the fifth byte of the BTH, which lies at `bth_at`. The IP header is version 4
 * or 6 by its first nibble; `udp_at` is where UDP starts. Offsets ascend and lie
 * in the frame, and bth_at + 12 <= end_at: the caller has checked. */
uint32_t fc_icrc(const uint8_t *frame, uint32_t l3_at, uint32_t udp_at, uint32_t bth_at,
		 uint32_t end_at);

#endif
