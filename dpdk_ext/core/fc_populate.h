/* Pages of a mapping, made before they are needed. Read by the compiler and by cffi. */
#ifndef FC_POPULATE_H
#define FC_POPULATE_H

#include <stdint.h>

/* Makes every page of a part writable, by the calling thread, on whose NUMA node new ones are taken
 * by default. `start` is the beginning of a page. Returns 0, or a negative errno: -EINVAL on a
 * kernel before 5.14, -EFAULT where the file has no room for them. */
int fc_populate(uint8_t *start, uint64_t bytes);

/* Has the pages of some memory at hand before they are read: those of a mapped file are fetched
 * from its disk. A hint: what is not there any more, or cannot be read, is left out. */
void fc_read_ahead(uint64_t address, uint64_t bytes);

#endif
