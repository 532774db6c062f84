/* Creates pages of a mapping before they are needed. Read by the compiler and by cffi. */
#ifndef FC_POPULATE_H
#define FC_POPULATE_H

#include <stdint.h>

/* Makes all pages of a range present and writable, in the calling thread; by default new pages are
 * on its NUMA node. `start` must be page-aligned. Returns 0, or a negative errno: -EINVAL on
 * kernels before 5.14, -EFAULT if the file system is full. */
int fc_populate(uint8_t *start, uint64_t bytes);

/* Prefetches pages before they are read; those of a mapped file from its disk. A hint: pages that
 * are gone or cannot be read are skipped. */
void fc_read_ahead(uint64_t address, uint64_t bytes);

#endif
