#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fcl_error.h"
#include "fcl_net.h"
#include "loop_net.h"

enum { WAITING = 64, LOGGED = 1 << 16 };

struct fcl_net {
	int wake_fd;
	struct fcl_net_counters counters;
};

struct fcl_region {
	uint8_t *memory;
	uint64_t bytes, va;
};

struct grant {
	uint8_t *memory;
	uint64_t va;
	uint32_t capacity;
};

struct fcl_send_comm {
	struct fcl_net *net;
	struct fcl_recv_comm *peer;
	struct grant grants[WAITING];
	uint64_t granted, used;
	uint32_t number;
};

struct fcl_recv_comm {
	struct fcl_net *net;
	struct fcl_send_comm *peer;
	uint32_t bytes[WAITING];
	uint64_t posted, arrived;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct loop_message logged[LOGGED];
static uint32_t log_count, senders;
static _Thread_local char sentence[256];

int fcl_fail(int errno_value, const char *format, ...)
{
	char text[sizeof sentence];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	memcpy(sentence, text, sizeof sentence);
	return -errno_value;
}

const char *fcl_error(void)
{
	return sentence;
}

uint32_t loop_senders(void)
{
	return senders;
}

uint32_t loop_messages(struct loop_message *out, uint32_t room)
{
	uint32_t count;

	pthread_mutex_lock(&lock);
	count = log_count < room ? log_count : room;
	memcpy(out, logged, count * sizeof *out);
	log_count = 0;
	pthread_mutex_unlock(&lock);
	return count;
}

static void wake(const struct fcl_net *net)
{
	uint64_t one = 1;

	if (write(net->wake_fd, &one, sizeof one) < 0)
		perror("loop_net");
}

int fcl_net_open(const struct fcl_net_settings *settings, struct fcl_net **net)
{
	*net = calloc(1, sizeof **net);
	(*net)->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	return 0;
}

void fcl_net_close(struct fcl_net *net)
{
	close(net->wake_fd);
	free(net);
}

void fcl_net_read(const struct fcl_net *net, struct fcl_net_counters *out)
{
	*out = net->counters;
}

int fcl_region_open(struct fcl_net *net, void *memory, uint64_t bytes, uint64_t va,
		    struct fcl_region **region)
{
	*region = malloc(sizeof **region);
	**region = (struct fcl_region){ memory, bytes, va };
	return 0;
}

void fcl_region_close(struct fcl_region *region)
{
	free(region);
}

/* A handle is the address of the end, a sender's number behind it: all ends live in this process, and are
 * never freed. */
int fcl_send_open(struct fcl_net *net, uint8_t handle[FCL_HANDLE_BYTES],
		  struct fcl_send_comm **comm)
{
	*comm = calloc(1, sizeof **comm);
	(*comm)->net = net;
	pthread_mutex_lock(&lock);
	(*comm)->number = senders++;
	pthread_mutex_unlock(&lock);
	memcpy(handle, comm, sizeof *comm);
	memcpy(handle + sizeof *comm, &(*comm)->number, sizeof(*comm)->number);
	return 0;
}

int fcl_recv_open(struct fcl_net *net, uint32_t sender_rank, uint8_t handle[FCL_HANDLE_BYTES],
		  struct fcl_recv_comm **comm)
{
	*comm = calloc(1, sizeof **comm);
	(*comm)->net = net;
	memcpy(handle, comm, sizeof *comm);
	return 0;
}

int fcl_send_connect(struct fcl_send_comm *comm, const uint8_t peer[FCL_HANDLE_BYTES])
{
	memcpy(&comm->peer, peer, sizeof comm->peer);
	return 0;
}

int fcl_recv_connect(struct fcl_recv_comm *comm, const uint8_t peer[FCL_HANDLE_BYTES])
{
	memcpy(&comm->peer, peer, sizeof comm->peer);
	return 0;
}

void fcl_send_close(struct fcl_send_comm *comm)
{
}

void fcl_recv_close(struct fcl_recv_comm *comm)
{
}

int fcl_irecv(struct fcl_recv_comm *comm, struct fcl_region *region, uint64_t offset_bytes,
	      uint32_t capacity_bytes, uint64_t *ticket)
{
	struct fcl_send_comm *peer = comm->peer;

	if (offset_bytes + capacity_bytes > region->bytes)
		return fcl_fail(EINVAL, "a receive outside its region");
	pthread_mutex_lock(&lock);
	peer->grants[peer->granted++ % WAITING] =
		(struct grant){ region->memory + offset_bytes, region->va + offset_bytes,
				capacity_bytes };
	*ticket = comm->posted++;
	wake(peer->net);
	pthread_mutex_unlock(&lock);
	return 0;
}

int fcl_recv_test(struct fcl_recv_comm *comm, uint64_t ticket, uint32_t *bytes)
{
	int arrived;

	pthread_mutex_lock(&lock);
	arrived = ticket < comm->arrived;
	if (arrived)
		*bytes = comm->bytes[ticket % WAITING];
	pthread_mutex_unlock(&lock);
	return arrived;
}

int fcl_isend(struct fcl_send_comm *comm, const void *data, uint32_t bytes, uint64_t *ticket)
{
	const struct grant *grant = &comm->grants[comm->used % WAITING];
	int result = -EAGAIN;

	pthread_mutex_lock(&lock);
	if (comm->used < comm->granted) {
		struct loop_message *message = &logged[log_count++ % LOGGED];

		*message =
			(struct loop_message){ comm->number, bytes, grant->capacity, 0, grant->va };
		if (bytes >= 8)
			memcpy(&message->flag, (const uint8_t *)data + 4, 4);
		memcpy(grant->memory, data, bytes <= grant->capacity ? bytes : 0);
		comm->peer->bytes[comm->peer->arrived++ % WAITING] = bytes;
		*ticket = comm->used++;
		wake(comm->peer->net);
		result = 0;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

int fcl_send_test(struct fcl_send_comm *comm, uint64_t ticket)
{
	return ticket < comm->used;
}

int fcl_net_progress(struct fcl_net *net)
{
	return 0;
}

int fcl_net_wait(struct fcl_net *net, int wake_fd, int limit_ms)
{
	struct pollfd ends[2] = { { net->wake_fd, POLLIN, 0 }, { wake_fd, POLLIN, 0 } };
	uint64_t wakes;

	poll(ends, 2, limit_ms);
	if (read(net->wake_fd, &wakes, sizeof wakes) < 0 && errno != EAGAIN)
		perror("loop_net");
	return 0;
}
