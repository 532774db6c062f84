#include "fc_digest.h"

#include <string.h>

/* What SubBytes and MixColumns make of a byte in a column's first row; of one in a lower row it is
 * that, turned by as many rows. */
static uint32_t mixed[256];

/* times x in GF(2^8), FIPS 197, section 4.2.1. */
static uint8_t doubled(uint8_t a)
{
	return (uint8_t)(a << 1 ^ (a & 0x80 ? 0x1b : 0));
}

/* The affine part of SubBytes, section 5.1.1. */
static uint8_t affine(uint8_t inverse)
{
	uint32_t sum = inverse;

	for (uint32_t turn = 1; turn < 5; turn++)
		sum ^= (uint32_t)inverse << turn | (uint32_t)inverse >> (8 - turn);
	return (uint8_t)(sum ^ 0x63);
}

void fc_digest_prepare(void)
{
	uint8_t powers[255], inverses[256] = { 0 };

	/* 3 generates all that have an inverse: that of 3^n is 3^(255 - n). */
	powers[0] = 1;
	for (uint32_t n = 1; n < 255; n++)
		powers[n] = powers[n - 1] ^ doubled(powers[n - 1]);
	for (uint32_t n = 0; n < 255; n++)
		inverses[powers[n]] = powers[(255 - n) % 255];
	for (uint32_t a = 0; a < 256; a++) {
		const uint8_t s = affine(inverses[a]), twice = doubled(s);
		mixed[a] =
			twice | (uint32_t)s << 8 | (uint32_t)s << 16 | (uint32_t)(twice ^ s) << 24;
	}
}

void fc_digest_begin(uint64_t *lanes)
{
	static const uint8_t pi[FC_DIGEST_PAIR] = {
		0x24, 0x3f, 0x6a, 0x88, 0x85, 0xa3, 0x08, 0xd3, 0x13, 0x19, 0x8a,
		0x2e, 0x03, 0x70, 0x73, 0x44, 0xa4, 0x09, 0x38, 0x22, 0x29, 0x9f,
		0x31, 0xd0, 0x08, 0x2e, 0xfa, 0x98, 0xec, 0x4e, 0x6c, 0x89,
	};

	memcpy(lanes, pi, sizeof pi);
}

void fc_digest_round(uint8_t *lane, const uint8_t *bytes)
{
	uint8_t made[FC_DIGEST_LANE];

	for (uint32_t column = 0; column < 4; column++) {
		uint32_t sum = 0;
		for (uint32_t row = 0; row < 4; row++) {
			const uint32_t own = mixed[lane[(4 * (column + row) + row) % 16]];
			sum ^= row ? own << 8 * row | own >> (32 - 8 * row) : own;
		}
		for (uint32_t row = 0; row < 4; row++)
			made[4 * column + row] =
				(uint8_t)(sum >> 8 * row) ^ bytes[4 * column + row];
	}
	memcpy(lane, made, sizeof made);
}

void fc_digest_end(uint64_t *lanes, uint64_t bytes, uint8_t *out)
{
	uint8_t *a = (uint8_t *)lanes, number[FC_DIGEST_LANE] = { 0 };
	const uint8_t none[FC_DIGEST_LANE] = { 0 };

	for (uint32_t i = 0; i < 8; i++)
		number[i] = (uint8_t)(bytes >> 8 * i);
	fc_digest_round(a, number);
	fc_digest_round(a, a + FC_DIGEST_LANE);
	for (uint32_t i = 0; i < 3; i++)
		fc_digest_round(a, none);
	memcpy(out, a, FC_DIGEST_LANE);
}
