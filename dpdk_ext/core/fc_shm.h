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
 * and maps it, zeroed. Whether huge pages back it depends on where it lies.
 * -EPERM where others may write to the folder, but for one with the sticky bit,
 * or where it belongs to somebody else. */
int fc_map_create(const char *path, uint64_t bytes, struct fc_map *out);
/* Maps all of an existing file; -ENOENT, -EACCES, -EINVAL when it is empty or no
 * regular file, -ELOOP when it is a link, and -EPERM when it, or its folder, is
 * not root's, this process's own user's or a trusted one's, or others may write
 * to it. */
int fc_map_open(const char *path, int writable, struct fc_map *out);
/* Maps all of a file that anybody may have made, to be read: a capture. */
int fc_map_read_file(const char *path, struct fc_map *out);
/* What this user owns is taken over as root's own is; -ENOSPC for too many. */
int fc_map_trust(uint32_t uid);
void fc_map_close(struct fc_map *map);

#endif
