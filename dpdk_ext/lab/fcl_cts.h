/* Clear-to-send entries by NCCL release (src/transport/net_ib, struct ncclIbSendFifo). */
#pragma once

#include <stdint.h>

enum fcl_release {
	FCL_V2_19 = 21900,
	FCL_V2_20 = 22000,
	FCL_V2_24 = 22400,
	FCL_V2_30 = 23000,
};

/* Where the fields of a clear-to-send entry lie: nccl's struct ncclIbSendFifo by release. */
struct fcl_cts_layout {
	uint8_t entry_bytes, size_at, size_bytes, rkeys_at, rkeys, nreqs_at, tag_at, index_at;
};

static inline struct fcl_cts_layout fcl_cts_layout(uint32_t version)
{
	if (version >= FCL_V2_30)
		return (struct fcl_cts_layout){ 64, 8, 8, 16, 8, 48, 52, 56 };
	if (version >= FCL_V2_24)
		return (struct fcl_cts_layout){ 64, 8, 8, 16, 4, 32, 36, 40 };
	if (version >= FCL_V2_20)
		return (struct fcl_cts_layout){ 64, 8, 4, 12, 2, 20, 24, 32 };
	return (struct fcl_cts_layout){ 32, 8, 4, 12, 1, 16, 20, 24 };
}

static inline uint32_t fcl_cts_slots(uint32_t version)
{
	return version >= FCL_V2_19 ? 256 : 64;
}

/* Little-endian fields, as the hosts that run NCCL have them. */
static inline void fcl_put_le(uint8_t *to, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		to[i] = (uint8_t)(value >> 8 * i);
}

static inline uint64_t fcl_get_le(const uint8_t *from, int bytes)
{
	uint64_t value = 0;
	for (int i = 0; i < bytes; i++)
		value |= (uint64_t)from[i] << 8 * i;
	return value;
}
