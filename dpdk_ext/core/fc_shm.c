#define _GNU_SOURCE
#include "fc_shm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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

/* Maps `fd` and closes it in any case, since the mapping keeps the file alive. */
static int map_descriptor(int fd, const char *path, uint64_t bytes, int writable,
			  struct fc_map *out)
{
	const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
	void *base = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
	const int problem = errno;

	out->huge_pages = (uint32_t)on_hugetlbfs(fd);
	close(fd);
	if (base == MAP_FAILED)
		return fc_fail(problem, FILE_NOT_MAPPED, .texts = { path }, .numbers = { bytes });
	out->base = base;
	out->bytes = bytes;
	out->writable = (uint32_t)writable;
	return 0;
}

/* Most users, apart from root and the process's own, whose files are trusted. */
enum { TRUSTED_MAX = 8 };
static uint32_t trusted[TRUSTED_MAX];
static int trusted_used;

int fc_map_trust(uint32_t uid)
{
	for (int i = 0; i < trusted_used; i++)
		if (trusted[i] == uid)
			return 0;
	if (trusted_used == TRUSTED_MAX)
		return fc_fail(ENOSPC, TRUSTED_USERS_TOO_MANY, .numbers = { TRUSTED_MAX });
	trusted[trusted_used++] = uid;
	return 0;
}

static int is_trusted(uid_t uid)
{
	if (uid == 0 || uid == geteuid())
		return 1;
	for (int i = 0; i < trusted_used; i++)
		if (trusted[i] == uid)
			return 1;
	return 0;
}

/* Refuses a file or folder that another user owns or may write to. A sticky folder (/dev/shm),
 * where all can create files but not touch those of others, is accepted. */
static int refuse_shared(const struct stat *found, const char *path)
{
	const int is_folder = S_ISDIR(found->st_mode);
	const int sticky = is_folder && (found->st_mode & S_ISVTX);
	const struct fc_error_arguments owners = { .texts = { path },
						   .numbers = { found->st_uid, geteuid() } };
	const struct fc_error_arguments mode = { .texts = { path },
						 .numbers = { found->st_mode & 07777 } };

	if (!is_trusted(found->st_uid))
		return fc_fail_with(EPERM,
				    is_folder ? FC_ERROR_FOLDER_OF_ANOTHER_USER
					      : FC_ERROR_FILE_OF_ANOTHER_USER,
				    &owners);
	if ((found->st_mode & (S_IWGRP | S_IWOTH)) && !sticky)
		return fc_fail_with(EPERM,
				    is_folder ? FC_ERROR_FOLDER_WRITABLE_BY_OTHERS
					      : FC_ERROR_FILE_WRITABLE_BY_OTHERS,
				    &mode);
	return 0;
}

/* Opens the folder of `path` and returns its descriptor; `name` points after the last slash. The
 * file is then looked up relative to that folder. */
static int open_folder(const char *path, const char **name)
{
	char folder[PATH_MAX];
	const char *slash = strrchr(path, '/');
	const size_t length = slash ? (size_t)(slash - path) : 0;
	struct stat found;

	*name = slash ? slash + 1 : path;
	if (length >= sizeof folder)
		return fc_fail(ENAMETOOLONG, PATH_TOO_LONG, .texts = { path },
			       .numbers = { PATH_MAX });
	memcpy(folder, path, length);
	folder[length] = '\0';
	const char *where = !slash ? "." : length ? folder : "/";
	const int fd = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return fc_fail(errno, FOLDER_NOT_OPENED, .texts = { path });
	int code = fstat(fd, &found) < 0 ? fc_fail(errno, STATUS_NOT_READ, .texts = { where })
					 : refuse_shared(&found, where);
	if (code < 0) {
		close(fd);
		return code;
	}
	return fd;
}

int fc_map_create(const char *path, uint64_t bytes, struct fc_map *out)
{
	const char *name;

	memset(out, 0, sizeof *out);
	const int folder = open_folder(path, &name);
	if (folder < 0)
		return folder;
	const int fd =
		openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		const int problem = errno;

		close(folder);
		return fc_fail(problem, FILE_NOT_CREATED, .texts = { path });
	}
	const uint64_t page = on_hugetlbfs(fd) ? FC_HUGE_PAGE_BYTES : 4096;
	bytes = (bytes + page - 1) / page * page;
	/* Reserved now and not at the first access: a full disk or an empty pool must fail here,
	 * and not with SIGBUS during a capture. */
	const int problem = posix_fallocate(fd, 0, (off_t)bytes);
	int code;
	if (problem) {
		close(fd);
		code = fc_fail(problem, MEMORY_NOT_RESERVED, .texts = { path },
			       .numbers = { bytes });
	} else {
		code = map_descriptor(fd, path, bytes, 1, out);
	}
	if (code < 0)
		unlinkat(folder, name, 0);
	close(folder);
	return code;
}

static int map_open(int fd, const char *path, int writable, int own, struct fc_map *out)
{
	struct stat status;
	int code = 0;

	if (fstat(fd, &status) < 0)
		code = fc_fail(errno, STATUS_NOT_READ, .texts = { path });
	else if (!S_ISREG(status.st_mode))
		code = fc_fail(EINVAL, FILE_NOT_REGULAR, .texts = { path });
	else if (own)
		code = refuse_shared(&status, path);
	if (code == 0 && status.st_size == 0)
		code = fc_fail(EINVAL, FILE_EMPTY, .texts = { path });
	if (code < 0) {
		close(fd);
		return code;
	}
	return map_descriptor(fd, path, (uint64_t)status.st_size, writable, out);
}

int fc_map_open(const char *path, int writable, struct fc_map *out)
{
	const char *name;

	memset(out, 0, sizeof *out);
	const int folder = open_folder(path, &name);
	if (folder < 0)
		return folder;
	/* Does not block if a pipe is at this path. */
	const int fd = openat(folder, name,
			      (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	const int problem = errno;
	close(folder);
	if (fd < 0 && problem == ELOOP)
		return fc_fail(problem, FILE_IS_LINK, .texts = { path });
	if (fd < 0)
		return fc_fail(problem, FILE_NOT_OPENED, .texts = { path });
	return map_open(fd, path, writable, 1, out);
}

int fc_map_read_file(const char *path, struct fc_map *out)
{
	memset(out, 0, sizeof *out);
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return fc_fail(errno, FILE_NOT_OPENED, .texts = { path });
	return map_open(fd, path, 0, 0, out);
}

void fc_map_close(struct fc_map *map)
{
	if (map->base)
		munmap(map->base, map->bytes);
	memset(map, 0, sizeof *map);
}
