/* CRC-32, and the invariant CRC of RoCEv2. Read by the compiler and by cffi. */
#ifndef FC_ICRC_H
#define FC_ICRC_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32 of Ethernet, as zlib.crc32(bytes, before), by the fastest implementation for this CPU. */
uint32_t fc_crc32(uint32_t before, const uint8_t *bytes, size_t count);
/* The same with a table only, which runs on every CPU; a reference for tests. */
uint32_t fc_crc32_table(uint32_t before, const uint8_t *bytes, size_t count);
/* Implementation of fc_crc32: "vpclmul", "pclmul" or "table". The environment variable
 * FLOWCHECK_CRC selects a lesser one, for tests and benchmarks. */
const char *fc_crc32_name(void);

/* The ICRC of `frame`[l3_at .. end_at), from the IP header to the payload, without the ICRC
 * itself. Fields that routers rewrite count as ones, and so does the fifth byte of the BTH, which
 * is at `bth_at`. The first nibble gives the IP version; UDP starts at `udp_at`. The caller has
 * checked that the offsets ascend and that bth_at + 12 <= end_at. */
uint32_t fc_icrc(const uint8_t *frame, uint32_t l3_at, uint32_t udp_at, uint32_t bth_at,
		 uint32_t end_at);

/* Copies `bytes` bytes of a frame as fc_copy_stream() does, and returns their ICRC as fc_icrc()
 * does, of an IP header without options or extension headers at l3_at that UDP follows: each byte
 * is fetched from memory once. The caller has checked that the BTH ends at or before end_at and
 * end_at <= bytes. */
uint32_t fc_copy_with_icrc(uint8_t *to, const uint8_t *frame, size_t bytes, uint32_t l3_at,
			   uint32_t end_at);

#endif
