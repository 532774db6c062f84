/* Named shared memory: created whole and reserved in full, or not at all. */
#ifndef FC_SHM_H
#define FC_SHM_H

#include <stdint.h>

struct fc_map {
	uint8_t *base;
	uint64_t bytes;      /* mapped; a multiple of the page size */
	uint32_t huge_pages; /* 1: the file lies on a hugetlbfs with 2 MiB pages */
	uint32_t writable;
};

/* Creates `path` (mode 0600, fails with -EEXIST if there), reserves every byte
 * and maps it, zeroed. Whether huge pages back it depends on where it lies. */
int fc_map_create(const char *path, uint64_t bytes, struct fc_map *out);
/* Maps all of an existing file; -ENOENT, -EACCES, or -EINVAL when it is empty. */
int fc_map_open(const char *path, int writable, struct fc_map *out);
void fc_map_close(struct fc_map *map);

#endif
