/* Small arithmetic of sizes. */
#pragma once

#include <stdint.h>

static inline uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline uint64_t ceil_div(uint64_t a, uint64_t b)
{
	return (a + b - 1) / b;
}

static inline uint64_t round_up(uint64_t a, uint64_t b)
{
	return ceil_div(a, b) * b;
}
