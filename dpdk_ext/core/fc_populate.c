#define _GNU_SOURCE
#include "fc_populate.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

/* linux/mman.h, asm-generic/mman-common.h, since 5.14 */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

int fc_populate(uint8_t *start, uint64_t bytes)
{
	return madvise(start, bytes, MADV_POPULATE_WRITE) ? -errno : 0;
}

void fc_read_ahead(uint64_t address, uint64_t bytes)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = address / page * page;
	void *start = (void *)(uintptr_t)first; /* used as a number only, not kept */

	(void)madvise(start, address + bytes - first, MADV_WILLNEED);
	(void)madvise(start, address + bytes - first, MADV_POPULATE_READ);
}
