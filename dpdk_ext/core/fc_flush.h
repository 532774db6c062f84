/* Starts writing a growing file to its disk. Read by the compiler and by cffi. */
#ifndef FC_FLUSH_H
#define FC_FLUSH_H

#include <stdint.h>

/* Starts writing a part of an open file to its disk; does not wait for the end. */
void fc_begin_flush(int descriptor, uint64_t first, uint64_t bytes);

#endif
