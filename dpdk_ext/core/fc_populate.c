#define _GNU_SOURCE
#include "fc_populate.h"

#include <errno.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* linux/mman.h, asm-generic/mman-common.h, since 5.14 */
#endif

int fc_populate(uint8_t *start, uint64_t bytes)
{
	return madvise(start, bytes, MADV_POPULATE_WRITE) ? -errno : 0;
}
