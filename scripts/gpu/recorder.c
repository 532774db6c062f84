/* A network plugin for NCCL that carries its messages over loopback TCP and writes every one of
 * them down, so that ranks which share one GPU under different NCCL_HOSTIDs put on record what
 * NCCL's proxies would hand to a NIC: sizes, tags, addresses, order and bytes.
 *
 * NCCL loads it by NCCL_NET_PLUGIN=/path/librecorder.so (interface: ncclNet_v8, plugins/net/example
 * in NCCL's repository; every release from 2.20 to 2.30 reads it). FLOWCHECK_RECORD names the file.
 * It stands for net_ib where a message is sent only once the receiver has posted a buffer for it. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, POINTER_HOST = 1, TO_ALL = -1 };
enum { REQUESTS = 256, SPEED_MBPS = 100000, COMMUNICATORS = 65536 };
enum kind { CONNECTED = 1, ACCEPTED, SENT, POSTED, RECEIVED };

/* One thing that happened; SENT is followed by `size` bytes. */
struct record {
	uint32_t kind, comm;
	uint64_t at_ns, address;
	uint32_t size;
	int32_t tag;
	uint32_t key, other; /* memory key; CONNECTED: listener's id, key: its process */
};

struct handle {
	uint32_t process, listener;
	uint16_t port;
};

struct request {
	int used, sends, done;
	uint32_t size; /* asked for; then what came */
	int32_t tag;
	char *data;
	struct comm *comm;
};

struct header {
	uint32_t size;
	int32_t tag;
};

struct comm {
	uint32_t id;
	int fd;
	struct request ring[REQUESTS];
	uint64_t posted, finished;
	size_t moved; /* bytes of the oldest request, with its header */
	struct header head;
	uint64_t granted; /* sends: buffers the receiver has posted */
};

struct listener {
	uint32_t id;
	int fd;
};

struct properties { /* ncclNetProperties_v8_t */
	char *name, *pci_path;
	uint64_t guid;
	int pointers, global_registration, speed, port;
	float latency;
	int max_comms, max_receives, device_type, device_version;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *record_file;
static uint32_t next_id = 1, next_key = 1;

static void note(enum kind kind, uint32_t comm, const void *data, uint32_t size, int32_t tag,
		 uint32_t key, uint32_t other)
{
	struct timespec now;
	struct record record = { kind, comm, 0, (uintptr_t)data, size, tag, key, other };

	pthread_mutex_lock(&lock);
	clock_gettime(CLOCK_MONOTONIC, &now);
	record.at_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	fwrite(&record, sizeof record, 1, record_file);
	if (kind == SENT)
		fwrite(data, 1, size, record_file);
	pthread_mutex_unlock(&lock);
}

static int net_init(void *log)
{
	char path[4096];
	const char *folder = getenv("FLOWCHECK_RECORD");

	(void)log;
	if (record_file)
		return SUCCESS;
	if (!folder)
		return SYSTEM_ERROR;
	snprintf(path, sizeof path, "%s.%u", folder, (unsigned)getpid());
	record_file = fopen(path, "wb");
	if (record_file)
		setvbuf(record_file, NULL, _IOFBF, 1 << 20);
	return record_file ? SUCCESS : SYSTEM_ERROR;
}

static int net_devices(int *count)
{
	*count = 1;
	return SUCCESS;
}

static int net_properties(int device, struct properties *to)
{
	const char *speed = getenv("FLOWCHECK_RECORD_MBPS");

	memset(to, 0, sizeof *to);
	to->name = "recorder";
	to->guid = (uint64_t)device;
	to->pointers = POINTER_HOST;
	to->global_registration = 0;
	to->speed = speed ? atoi(speed) : SPEED_MBPS;
	to->port = 1;
	to->max_comms = COMMUNICATORS;
	to->max_receives = 1;
	return SUCCESS;
}

static void tune(int fd)
{
	int one = 1, room = 8 << 20;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
	fcntl(fd, F_SETFL, O_NONBLOCK);
}

static uint32_t new_id(void)
{
	return __atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED);
}

static int net_listen(int device, void *into, void **listener)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof at;
	struct listener *new = calloc(1, sizeof *new);
	struct handle *handle = into;

	(void)device;
	new->fd = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(new->fd, (void *)&at, sizeof at) || listen(new->fd, 8) ||
	    getsockname(new->fd, (void *)&at, &bytes))
		return SYSTEM_ERROR;
	fcntl(new->fd, F_SETFL, O_NONBLOCK);
	new->id = new_id();
	*handle = (struct handle){ (uint32_t)getpid(), new->id, ntohs(at.sin_port) };
	*listener = new;
	return SUCCESS;
}

static struct comm *new_comm(int fd)
{
	struct comm *new = calloc(1, sizeof *new);

	new->id = new_id();
	new->fd = fd;
	tune(fd);
	return new;
}

static int net_connect(int device, void *from, void **send, void **device_comm)
{
	const struct handle *handle = from;
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons(handle->port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct comm *comm;

	(void)device;
	(void)device_comm;
	if (connect(fd, (void *)&at, sizeof at))
		return SYSTEM_ERROR;
	comm = new_comm(fd);
	note(CONNECTED, comm->id, NULL, 0, 0, handle->process, handle->listener);
	*send = comm;
	return SUCCESS;
}

static int net_accept(void *from, void **receive, void **device_comm)
{
	struct listener *listener = from;
	struct comm *comm;
	int fd = accept(listener->fd, NULL, NULL);

	(void)device_comm;
	*receive = NULL;
	if (fd < 0)
		return errno == EAGAIN ? SUCCESS : SYSTEM_ERROR;
	comm = new_comm(fd);
	note(ACCEPTED, comm->id, NULL, 0, 0, 0, listener->id);
	*receive = comm;
	return SUCCESS;
}

static int net_register(void *comm, void *data, size_t size, int type, void **handle)
{
	(void)comm;
	(void)data;
	(void)size;
	(void)type;
	*handle = (void *)(uintptr_t)__atomic_fetch_add(&next_key, 1, __ATOMIC_RELAXED);
	return SUCCESS;
}

static int net_deregister(void *comm, void *handle)
{
	(void)comm;
	(void)handle;
	return SUCCESS;
}

/* The receiver says a byte for each buffer it posts. */
static int take_grants(struct comm *comm)
{
	char some[64];
	ssize_t took = recv(comm->fd, some, sizeof some, MSG_DONTWAIT);

	if (took > 0)
		comm->granted += (uint64_t)took;
	return took == 0 || (took < 0 && errno != EAGAIN) ? SYSTEM_ERROR : SUCCESS;
}

/* How far `moved` bytes are into a request that begins with its header; 1: no more can go now. */
static int move(struct comm *comm, struct request *request)
{
	char *at;
	size_t left;
	ssize_t went;

	if (comm->moved < sizeof comm->head) {
		at = (char *)&comm->head + comm->moved;
		left = sizeof comm->head - comm->moved;
	} else {
		at = request->data + (comm->moved - sizeof comm->head);
		left = sizeof comm->head + request->size - comm->moved;
	}
	went = request->sends ? send(comm->fd, at, left, MSG_DONTWAIT | MSG_NOSIGNAL)
			      : recv(comm->fd, at, left, MSG_DONTWAIT);
	if (went <= 0)
		return went < 0 && errno == EAGAIN ? 1 : TO_ALL;
	comm->moved += (size_t)went;
	return 0;
}

static int progress(struct comm *comm)
{
	while (comm->finished < comm->posted) {
		struct request *request = &comm->ring[comm->finished % REQUESTS];

		if (request->sends && comm->moved == 0)
			comm->head = (struct header){ request->size, request->tag };
		while (comm->moved < sizeof comm->head ||
		       comm->moved < sizeof comm->head + request->size) {
			int stopped = move(comm, request);

			if (stopped)
				return stopped < 0 ? SYSTEM_ERROR : SUCCESS;
			if (!request->sends && comm->moved == sizeof comm->head) {
				if (comm->head.size > request->size ||
				    comm->head.tag != request->tag)
					return INTERNAL_ERROR;
				request->size = comm->head.size;
			}
		}
		if (!request->sends)
			note(RECEIVED, comm->id, request->data, request->size, request->tag, 0, 0);
		request->done = 1;
		comm->moved = 0;
		comm->finished++;
	}
	return SUCCESS;
}

static struct request *new_request(struct comm *comm, void *data, int size, int tag, int sends)
{
	struct request *new = &comm->ring[comm->posted % REQUESTS];

	if (new->used)
		return NULL;
	*new = (struct request){ 1, sends, 0, (uint32_t)size, tag, data, comm };
	comm->posted++;
	return new;
}

static int net_send(void *to, void *data, int size, int tag, void *handle, void **request)
{
	struct comm *comm = to;
	struct request *new;

	*request = NULL;
	if (take_grants(comm))
		return SYSTEM_ERROR;
	if (comm->granted <= comm->posted)
		return SUCCESS;
	new = new_request(comm, data, size, tag, 1);
	if (!new)
		return SUCCESS;
	note(SENT, comm->id, data, (uint32_t)size, tag, (uint32_t)(uintptr_t)handle, 0);
	*request = new;
	return progress(comm);
}

static int net_receive(void *from, int count, void **data, int *sizes, int *tags, void **handles,
		       void **request)
{
	struct comm *comm = from;
	struct request *new;
	uint32_t key = (uint32_t)(uintptr_t)handles[0];

	*request = NULL;
	if (count != 1)
		return INTERNAL_ERROR;
	new = new_request(comm, data[0], sizes[0], tags[0], 0);
	if (!new)
		return SUCCESS;
	note(POSTED, comm->id, data[0], (uint32_t)sizes[0], tags[0], key, 0);
	if (send(comm->fd, "g", 1, MSG_NOSIGNAL) != 1)
		return SYSTEM_ERROR;
	*request = new;
	return progress(comm);
}

static int net_flush(void *comm, int count, void **data, int *sizes, void **handles, void **request)
{
	(void)comm;
	(void)count;
	(void)data;
	(void)sizes;
	(void)handles;
	*request = NULL;
	return SUCCESS;
}

static int net_test(void *of, int *done, int *size)
{
	struct request *request = of;
	int failed = request->done ? SUCCESS : progress(request->comm);

	*done = request->done;
	if (request->done) {
		if (size)
			*size = (int)request->size;
		request->used = 0;
	}
	return failed;
}

static int net_close(void *of)
{
	struct comm *comm = of;

	close(comm->fd);
	free(comm);
	pthread_mutex_lock(&lock);
	fflush(record_file);
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

static int net_close_listener(void *of)
{
	struct listener *listener = of;

	close(listener->fd);
	free(listener);
	return SUCCESS;
}

struct net { /* ncclNet_v8_t */
	const char *name;
	int (*init)(void *);
	int (*devices)(int *);
	int (*properties)(int, struct properties *);
	int (*listen)(int, void *, void **);
	int (*connect)(int, void *, void **, void **);
	int (*accept)(void *, void **, void **);
	int (*register_memory)(void *, void *, size_t, int, void **);
	int (*register_dmabuf)(void *, void *, size_t, int, uint64_t, int, void **);
	int (*deregister)(void *, void *);
	int (*send)(void *, void *, int, int, void *, void **);
	int (*receive)(void *, int, void **, int *, int *, void **, void **);
	int (*flush)(void *, int, void **, int *, void **, void **);
	int (*test)(void *, int *, int *);
	int (*close_send)(void *);
	int (*close_receive)(void *);
	int (*close_listener)(void *);
	int (*device_memory)(void *, void *, void **);
	int (*consumed)(void *, int, void *);
};

const struct net ncclNetPlugin_v8 = {
	"recorder",  net_init,           net_devices,  net_properties, net_listen,
	net_connect, net_accept,         net_register, NULL,           net_deregister,
	net_send,    net_receive,        net_flush,    net_test,       net_close,
	net_close,   net_close_listener, NULL,         NULL,
};
