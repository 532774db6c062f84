#include "fc_pour.h"

#include "fc_icrc.h"
#include "fc_sha256.h"

/* The second look at a part finds it in the first cache. */
#define PART ((size_t)16 << 10)

void fc_pour(uint8_t *to, const uint8_t *data, size_t bytes, struct fc_sha256 *sum,
	     struct fc_sha256 *other, uint32_t *crc)
{
	for (size_t at = 0; at < bytes; at += PART) {
		const size_t part = bytes - at < PART ? bytes - at : PART;

		fc_sha256_copy(sum, other, data + at, to + at, part);
		if (crc)
			*crc = fc_crc32(*crc, to + at, part);
	}
}
