/* Arithmetic of the reducing collectives, rounded at every hop in the type on the wire as a GPU
 * rounds it (nearest even). */
#pragma once

#include <stdint.h>

struct fcl_arithmetic {
	uint32_t type;      /* enum fcl_type */
	uint32_t reduction; /* enum fcl_reduction */
	uint32_t ranks;     /* FCL_AVG divides by it */
};

/* Bytes of an element of enum fcl_type; 0: no such type. */
uint32_t fcl_type_bytes(uint32_t type);

/* What a rank brings in: out[i] = own[i], for the average of a floating type own[i] / ranks, as the
 * product with the rounded reciprocal (ncclDevPreMulSum). out may be own. */
void fcl_contribute(const struct fcl_arithmetic *arithmetic, void *out, const void *own,
		    uint64_t count);

/* out[i] = received[i] (op) contribution of own[i]; `last`: the chunk is finished here, so integer
 * averages are divided. out may be received or own. */
void fcl_reduce(const struct fcl_arithmetic *arithmetic, void *out, const void *received,
		const void *own, uint64_t count, int last);
