#define _GNU_SOURCE
#include "fc_shm.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "fc_common.h"
#include "fc_error.h"

/* linux/magic.h, HUGETLBFS_MAGIC */
#define HUGETLBFS_MAGIC 0x958458f6

static int on_hugetlbfs(int fd)
{
	struct statfs where;

	return fstatfs(fd, &where) == 0 && (unsigned long)where.f_type == HUGETLBFS_MAGIC;
}

/* Maps `fd`; closes it in every case, since the mapping keeps the file alive. */
static int map_descriptor(int fd, const char *path, uint64_t bytes, int writable,
			  struct fc_map *out)
{
	const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
	void *base = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
	const int problem = errno;

	out->huge_pages = (uint32_t)on_hugetlbfs(fd);
	close(fd);
	if (base == MAP_FAILED)
		return fc_fail(problem, "cannot map %llu bytes of %s: %s",
			       (unsigned long long)bytes, path, strerror(problem));
	out->base = base;
	out->bytes = bytes;
	out->writable = (uint32_t)writable;
	return 0;
}

int fc_map_create(const char *path, uint64_t bytes, struct fc_map *out)
{
	memset(out, 0, sizeof *out);
	const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return fc_fail(errno, "cannot create %s: %s", path, strerror(errno));
	const uint64_t page = on_hugetlbfs(fd) ? FC_HUGE_PAGE_BYTES : 4096;
	bytes = (bytes + page - 1) / page * page;
	/* Reserved now, not at first touch: a full disk or an empty pool must
	 * fail here and not as SIGBUS in the middle of a capture. */
	const int problem = posix_fallocate(fd, 0, (off_t)bytes);
	if (problem) {
		close(fd);
		unlink(path);
		return fc_fail(problem, "cannot reserve %llu bytes for %s: %s",
			       (unsigned long long)bytes, path, strerror(problem));
	}
	const int code = map_descriptor(fd, path, bytes, 1, out);
	if (code < 0)
		unlink(path);
	return code;
}

int fc_map_open(const char *path, int writable, struct fc_map *out)
{
	struct stat status;

	memset(out, 0, sizeof *out);
	const int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	if (fd < 0)
		return fc_fail(errno, "cannot open %s: %s", path, strerror(errno));
	if (fstat(fd, &status) < 0 || status.st_size == 0) {
		close(fd);
		return fc_fail(EINVAL, "%s is empty: it was never finished", path);
	}
	return map_descriptor(fd, path, (uint64_t)status.st_size, writable, out);
}

void fc_map_close(struct fc_map *map)
{
	if (map->base)
		munmap(map->base, map->bytes);
	memset(map, 0, sizeof *map);
}
