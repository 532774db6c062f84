/* Conversions of the 16-bit floating types, branch-free so that loops over them vectorise.
 * float holds the exact sum and product of two of either type well enough that rounding it once
 * more is the same as rounding the exact value (24 >= 2 * 11 + 2 bits). */
#pragma once

#include <stdint.h>
#include <string.h>

static inline float fcl_float_of_bits(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

static inline uint32_t fcl_bits_of_float(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static inline float fcl_load_bfloat16(uint16_t bits)
{
	return fcl_float_of_bits((uint32_t)bits << 16);
}

static inline uint16_t fcl_store_bfloat16(float value)
{
	uint32_t bits = fcl_bits_of_float(value);
	uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
	uint32_t is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;

	return (uint16_t)(is_nan ? 0x7FC0 : rounded);
}

static inline float fcl_load_float16(uint16_t bits)
{
	uint32_t magnitude = (uint32_t)(bits & 0x7FFF) << 13;
	uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
	uint32_t is_special = magnitude >= 0x0F800000;
	/* Scaling by 2^112 rebiases the exponent and makes subnormals normal, exactly. */
	uint32_t finite = fcl_bits_of_float(fcl_float_of_bits(magnitude) * 0x1p112f);

	return fcl_float_of_bits((is_special ? magnitude | 0x7F800000 : finite) | sign);
}

static inline uint16_t fcl_store_float16(float value)
{
	uint32_t bits = fcl_bits_of_float(value);
	uint32_t sign = (bits >> 16) & 0x8000;
	uint32_t magnitude = bits & 0x7FFFFFFF;
	uint32_t normal = (magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
	/* 0.5 + |x| has the ulp of a float16 subnormal (2^-24): the addition rounds as wanted. */
	uint32_t subnormal = fcl_bits_of_float(fcl_float_of_bits(magnitude) + 0.5f) - 0x3F000000;
	uint32_t result = magnitude < 0x38800000 ? subnormal : normal;

	result = magnitude >= 0x477FF000 ? 0x7C00 : result; /* 65520 and more round to infinity */
	result = magnitude > 0x7F800000 ? 0x7E00 : result;
	return (uint16_t)(result | sign);
}
