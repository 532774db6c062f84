/* Named shared memory: created with all its memory reserved, or not at all. */
#ifndef FC_SHM_H
#define FC_SHM_H

#include <stdint.h>

struct fc_map {
	uint8_t *base;
	uint64_t bytes;      /* mapped; a multiple of the page size */
	uint32_t huge_pages; /* 1: the file is on a hugetlbfs with 2 MiB pages */
	uint32_t writable;
};

/* Creates `path` (mode 0600; -EEXIST if it exists), reserves all bytes and maps them, zeroed. Its
 * place decides whether huge pages are used. -EPERM if the folder is writable by others without a
 * sticky bit, or belongs to another user. */
int fc_map_create(const char *path, uint64_t bytes, struct fc_map *out);
/* Maps an existing file. -ENOENT, -EACCES; -EINVAL if it is empty or not a regular file; -ELOOP if
 * it is a link; -EPERM if it or its folder does not belong to root, to this process's user or to a
 * trusted user, or is writable by others. */
int fc_map_open(const char *path, int writable, struct fc_map *out);
/* Maps a file of any owner for reading: a capture. */
int fc_map_read_file(const char *path, struct fc_map *out);
/* Trusts the files of this user like root's; -ENOSPC: too many users. */
int fc_map_trust(uint32_t uid);
void fc_map_close(struct fc_map *map);

#endif
