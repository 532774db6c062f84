#define _GNU_SOURCE
#include "fc_flush.h"

#include <fcntl.h>

void fc_begin_flush(int descriptor, uint64_t first, uint64_t bytes)
{
	/* A hint, as is sync_file_range(2), which some file systems lack; fsync follows. */
	(void)sync_file_range(descriptor, (off64_t)first, (off64_t)bytes, SYNC_FILE_RANGE_WRITE);
}
