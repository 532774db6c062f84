/* Writing back of a file while it grows. Read by the compiler and by cffi. */
#ifndef FC_FLUSH_H
#define FC_FLUSH_H

#include <stdint.h>

/* Begins to write a part of an open file to its disk; nothing waits for the end of that. */
void fc_begin_flush(int descriptor, uint64_t first, uint64_t bytes);

#endif
