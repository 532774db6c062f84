#define _GNU_SOURCE
#include "fcl_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fcl_error.h"
#include "fcl_node.h"
#include "fcl_round.h"

enum { COUNTS_BYTES = 4096, HANDLE_MAGIC = 0x4c434853 };

/* What the two ends tell each other; both are the same build on the same host. */
struct handle {
	uint32_t magic;
	int32_t pid, bell, memory;
	uint64_t offset, bytes; /* of the connection in the memory; 0: the sender's half */
};
_Static_assert(sizeof(struct handle) <= FCL_HANDLE_BYTES, "a handle fits its place");
_Static_assert(sizeof(struct fcl_shared_counts) <= COUNTS_BYTES, "the slots begin on a page");

static void fill_handle(struct fcl_node *node, uint64_t offset, uint64_t bytes, uint8_t *out)
{
	const struct handle handle = { .magic = HANDLE_MAGIC,
				       .pid = (int32_t)getpid(),
				       .bell = node->wake[0],
				       .memory = node->lending.memory,
				       .offset = offset,
				       .bytes = bytes };

	memset(out, 0, FCL_HANDLE_BYTES);
	memcpy(out, &handle, sizeof handle);
}

static int read_handle(const uint8_t *in, struct handle *handle)
{
	memcpy(handle, in, sizeof *handle);
	if (handle->magic != HANDLE_MAGIC)
		return fcl_fail(EPROTO, "what a rank of this host sent is no handle of memory");
	return 0;
}

/* Opens a descriptor of another process anew; it must be the same user's. */
static int open_of(int pid, int descriptor)
{
	char path[64];
	int opened;

	snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, descriptor);
	opened = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (opened < 0)
		return fcl_fail(errno, "process %d of this host lends nothing: %s", pid,
				strerror(errno));
	return opened;
}

/* Opened for reading too, so that a bell whose owner is gone takes what is rung. */
static int bell_of(struct fcl_node *node, const struct handle *handle)
{
	struct fcl_bell *bell = node->lending.bells;
	int opened;

	while (bell != NULL && (bell->pid != handle->pid || bell->number != handle->bell))
		bell = bell->next;
	if (bell != NULL)
		return bell->descriptor;
	opened = open_of(handle->pid, handle->bell);
	if (opened < 0)
		return opened;
	bell = malloc(sizeof *bell);
	if (bell == NULL) {
		close(opened);
		return fcl_fail(ENOMEM, "no memory for a bell");
	}
	*bell = (struct fcl_bell){ handle->pid, handle->bell, opened, node->lending.bells };
	node->lending.bells = bell;
	return opened;
}

static int map(int memory, uint64_t offset, uint64_t bytes, struct fcl_shared *shared)
{
	uint8_t *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
			       memory, (off_t)offset);

	if (mapped == MAP_FAILED)
		return fcl_fail(errno, "%llu bytes of shared memory cannot be mapped: %s",
				(unsigned long long)bytes, strerror(errno));
	shared->counts = (struct fcl_shared_counts *)(void *)mapped;
	shared->block = mapped + COUNTS_BYTES;
	shared->mapped_bytes = bytes;
	shared->offset = offset;
	return 0;
}

int fcl_shared_open_in(struct fcl_node *node, uint64_t block_bytes, struct fcl_shared *shared,
		       uint8_t *handle)
{
	struct fcl_lending *lending = &node->lending;
	uint64_t offset = lending->bytes;
	uint64_t bytes = COUNTS_BYTES + round_up(block_bytes, COUNTS_BYTES);
	int result;

	if (lending->memory < 0)
		lending->memory = memfd_create("flowcheck-lab", MFD_CLOEXEC);
	if (lending->memory < 0 || ftruncate(lending->memory, (off_t)(offset + bytes)) != 0)
		return fcl_fail(errno, "no shared memory for a connection: %s", strerror(errno));
	lending->bytes += bytes;
	result = map(lending->memory, offset, bytes, shared);
	if (result == 0)
		fill_handle(node, offset, bytes, handle);
	return result;
}

void fcl_shared_open_out(struct fcl_node *node, uint8_t *handle)
{
	fill_handle(node, 0, 0, handle);
}

int fcl_shared_connect_in(struct fcl_node *node, struct fcl_shared *shared, const uint8_t *peer)
{
	struct handle handle;
	int result = read_handle(peer, &handle);

	if (result == 0)
		result = shared->bell = bell_of(node, &handle);
	return result < 0 ? result : 0;
}

int fcl_shared_connect_out(struct fcl_node *node, struct fcl_shared *shared, const uint8_t *peer)
{
	struct handle handle;
	int memory, result = read_handle(peer, &handle);

	if (result == 0 && handle.bytes <= COUNTS_BYTES)
		result = fcl_fail(EPROTO, "a rank of this host lends no memory");
	if (result == 0)
		result = shared->bell = bell_of(node, &handle);
	if (result < 0)
		return result;
	memory = open_of(handle.pid, handle.memory);
	if (memory < 0)
		return memory;
	result = map(memory, handle.offset, handle.bytes, shared);
	close(memory);
	return result;
}

void fcl_shared_close(struct fcl_node *node, struct fcl_shared *shared)
{
	if (shared->counts == NULL)
		return;
	munmap(shared->counts, shared->mapped_bytes);
	/* The counts stay: a sender that is still there must not find fewer taken than before. What cannot
	 * be given back now, the end of the process gives back. */
	if (node != NULL)
		(void)fallocate(node->lending.memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				(off_t)(shared->offset + COUNTS_BYTES),
				(off_t)(shared->mapped_bytes - COUNTS_BYTES));
	*shared = (struct fcl_shared){ 0 };
}

void fcl_shared_ring(const struct fcl_shared *shared)
{
	const char one = 1;
	ssize_t written = write(shared->bell, &one, 1);

	(void)written; /* a bell that is full has been rung and not heard yet */
}

void fcl_lending_close(struct fcl_lending *lending)
{
	for (struct fcl_bell *bell = lending->bells, *next; bell != NULL; bell = next) {
		next = bell->next;
		close(bell->descriptor);
		free(bell);
	}
	if (lending->memory >= 0)
		close(lending->memory);
	*lending = (struct fcl_lending){ .memory = -1 };
}
