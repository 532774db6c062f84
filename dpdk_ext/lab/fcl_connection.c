/* Connections as NCCL's net_ib makes them: receives are announced by clear-to-send writes into the
 * sender's FIFO, data follow as writes with immediate (src/transport/net_ib; nccl 2.12 to 2.30). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fcl_cts.h"
#include "fcl_error.h"
#include "fcl_port.h"

enum {
	SENDS_MAX = 64,        /* messages of a connection not acknowledged */
	RECEIVES_MAX = 32,     /* posted and not complete: NCCL_NET_MAX_REQUESTS */
	MESSAGE_MAX = 1 << 28, /* bytes, so that its PSNs are few against the 24 bits they have */
	REQUESTS = 8,          /* sub-messages a FIFO slot has room for: NCCL_NET_IB_MAX_RECVS */
	ENTRY_MAX = 64,
	FIFO_SLOTS_MAX = 256,
	SPLIT_ALIGN = 128,   /* NCCL: IB_MIN_SPLIT_ALIGN, LL128 lines stay whole */
	AR_THRESHOLD = 8192, /* NCCL_IB_AR_THRESHOLD */
	HANDLE_MAGIC = 0x4c434648,
	V2_29 = 22900, /* immediates are big-endian from here on */
};

/* What the two ends tell each other before the first frame; both are the same build. */
struct handle {
	uint32_t magic, version, pmtu_bytes, qps;
	uint32_t qpns[FCL_QPS_MAX];
	uint64_t fifo_va;
	uint32_t fifo_rkey;
	struct fcl_address address;
};
_Static_assert(sizeof(struct handle) <= FCL_HANDLE_BYTES, "a handle fits its place");

struct fcl_send_comm {
	struct fcl_net *net;
	struct fcl_qp *qps[FCL_QPS_MAX];
	uint8_t *fifo;
	uint64_t fifo_bytes;
	struct fcl_region *fifo_region;
	uint64_t next;
	uint32_t left[SENDS_MAX]; /* writes of a message not acknowledged yet */
};

struct fcl_recv_comm {
	struct fcl_net *net;
	struct fcl_qp *qps[FCL_QPS_MAX];
	uint32_t sender_rank;
	uint64_t fifo_va;
	uint32_t fifo_rkey;
	uint64_t next;
	uint64_t completions[FCL_QPS_MAX]; /* immediates seen on each QP */
	uint32_t sizes[FIFO_SLOTS_MAX], capacities[FIFO_SLOTS_MAX];
	uint8_t entries[FIFO_SLOTS_MAX][ENTRY_MAX];
	uint32_t unacked[FIFO_SLOTS_MAX]; /* clear-to-send writes whose entry must not change yet */
};

static void close_qps(struct fcl_qp **qps)
{
	for (int i = 0; i < FCL_QPS_MAX && qps[i]; i++)
		fcl_net_remove_qp(qps[i]);
}

static int open_qps(struct fcl_net *net, struct fcl_qp **qps, fcl_completion *complete, void *owner)
{
	for (uint32_t i = 0; i < net->settings.qps_per_connection; i++) {
		qps[i] = fcl_net_add_qp(net);
		if (!qps[i])
			return fcl_fail(ENOMEM, "no memory for a queue pair");
		qps[i]->complete = complete;
		qps[i]->owner = owner;
	}
	return 0;
}

static void fill_handle(struct fcl_net *net, struct fcl_qp **qps, uint8_t *out)
{
	struct handle handle = {
		.magic = HANDLE_MAGIC,
		.version = net->settings.nccl_version,
		.pmtu_bytes = net->settings.pmtu_bytes,
		.qps = net->settings.qps_per_connection,
		.address = *fcl_nic_address(net->nic),
	};
	for (uint32_t i = 0; i < handle.qps; i++)
		handle.qpns[i] = qps[i]->number;
	memset(out, 0, FCL_HANDLE_BYTES);
	memcpy(out, &handle, sizeof(handle));
}

static int connect_qps(struct fcl_net *net, struct fcl_qp **qps, const uint8_t *peer,
		       struct handle *handle)
{
	memcpy(handle, peer, sizeof(*handle));
	if (handle->magic != HANDLE_MAGIC)
		return fcl_fail(EPROTO, "what the peer sent is no handle of a connection");
	if (handle->version != net->settings.nccl_version ||
	    handle->pmtu_bytes != net->settings.pmtu_bytes ||
	    handle->qps != net->settings.qps_per_connection)
		return fcl_fail(
			EPROTO,
			"the ranks have different settings: NCCL %u and %u, path MTU %u and %u, "
			"QPs per connection %u and %u",
			net->settings.nccl_version, handle->version, net->settings.pmtu_bytes,
			handle->pmtu_bytes, net->settings.qps_per_connection, handle->qps);
	for (uint32_t i = 0; i < handle->qps; i++)
		fcl_net_connect_qp(qps[i], handle->qpns[i], &handle->address);
	return 0;
}

int fcl_send_open(struct fcl_net *net, uint8_t handle[FCL_HANDLE_BYTES], struct fcl_send_comm **out)
{
	struct fcl_send_comm *comm = calloc(1, sizeof(*comm));
	if (!comm)
		return fcl_fail(ENOMEM, "no memory for a connection");
	comm->net = net;
	const uint32_t version = net->settings.nccl_version;
	comm->fifo_bytes =
		(uint64_t)fcl_cts_slots(version) * REQUESTS * fcl_cts_layout(version).entry_bytes;
	comm->fifo = mmap(NULL, comm->fifo_bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int code = comm->fifo == MAP_FAILED ? fcl_fail(ENOMEM, "no memory for a FIFO") : 0;
	if (code)
		comm->fifo = NULL;
	else /* Host memory: its own address, as net_ib registers it. */
		code = fcl_region_open(net, comm->fifo, comm->fifo_bytes,
				       (uint64_t)(uintptr_t)comm->fifo, &comm->fifo_region);
	if (!code)
		code = open_qps(net, comm->qps, NULL, NULL);
	if (code) {
		fcl_send_close(comm);
		return code;
	}
	fill_handle(net, comm->qps, handle);
	struct handle *own = (struct handle *)(void *)handle;
	own->fifo_va = comm->fifo_region->va;
	own->fifo_rkey = comm->fifo_region->rkey;
	*out = comm;
	return 0;
}

void fcl_send_close(struct fcl_send_comm *comm)
{
	close_qps(comm->qps);
	if (comm->fifo_region)
		fcl_region_close(comm->fifo_region);
	if (comm->fifo)
		munmap(comm->fifo, comm->fifo_bytes);
	free(comm);
}

int fcl_send_connect(struct fcl_send_comm *comm, const uint8_t peer[FCL_HANDLE_BYTES])
{
	struct handle handle;
	return connect_qps(comm->net, comm->qps, peer, &handle);
}

/* What the peer says came is believed only within what it was granted. */
static bool received(void *owner, struct fcl_qp *qp, uint32_t word)
{
	struct fcl_recv_comm *comm = owner;
	const struct fcl_net_settings *s = &comm->net->settings;
	const uint32_t bytes = s->nccl_version >= V2_29 ? word : __builtin_bswap32(word);
	uint32_t i = 0;
	while (comm->qps[i] != qp)
		i++;
	const uint64_t nth = comm->completions[i];
	const uint64_t ticket = s->split_data ? nth : nth * s->qps_per_connection + i;
	if (ticket >= comm->next || bytes > comm->capacities[ticket % FIFO_SLOTS_MAX])
		return false;
	comm->completions[i]++;
	comm->sizes[ticket % FIFO_SLOTS_MAX] = bytes;
	return true;
}

int fcl_recv_open(struct fcl_net *net, uint32_t sender_rank, uint8_t handle[FCL_HANDLE_BYTES],
		  struct fcl_recv_comm **out)
{
	struct fcl_recv_comm *comm = calloc(1, sizeof(*comm));
	if (!comm)
		return fcl_fail(ENOMEM, "no memory for a connection");
	comm->net = net;
	comm->sender_rank = sender_rank;
	const int code = open_qps(net, comm->qps, received, comm);
	if (code) {
		fcl_recv_close(comm);
		return code;
	}
	fill_handle(net, comm->qps, handle);
	*out = comm;
	return 0;
}

void fcl_recv_close(struct fcl_recv_comm *comm)
{
	close_qps(comm->qps);
	free(comm);
}

int fcl_recv_connect(struct fcl_recv_comm *comm, const uint8_t peer[FCL_HANDLE_BYTES])
{
	struct handle handle;
	const int code = connect_qps(comm->net, comm->qps, peer, &handle);
	comm->fifo_va = handle.fifo_va;
	comm->fifo_rkey = handle.fifo_rkey;
	return code;
}

int fcl_irecv(struct fcl_recv_comm *comm, struct fcl_region *region, uint64_t offset_bytes,
	      uint32_t capacity_bytes, uint64_t *ticket)
{
	const uint32_t version = comm->net->settings.nccl_version;
	const struct fcl_cts_layout l = fcl_cts_layout(version);
	const uint32_t slot = (uint32_t)(comm->next % fcl_cts_slots(version));
	uint32_t came;
	if (offset_bytes > region->bytes || capacity_bytes > region->bytes - offset_bytes)
		return fcl_fail(EINVAL, "a receive of %u bytes reaches past its region",
				capacity_bytes);
	if (comm->unacked[slot] ||
	    (comm->next >= RECEIVES_MAX && !fcl_recv_test(comm, comm->next - RECEIVES_MAX, &came)))
		return -EAGAIN;
	uint8_t *entry = comm->entries[slot];
	memset(entry, 0, l.entry_bytes);
	fcl_put_le(entry, region->va + offset_bytes, 8);
	fcl_put_le(entry + l.size_at, capacity_bytes, l.size_bytes);
	fcl_put_le(entry + l.rkeys_at, region->rkey, 4);
	fcl_put_le(entry + l.nreqs_at, 1, 4);
	fcl_put_le(entry + l.tag_at, comm->sender_rank, 4);
	fcl_put_le(entry + l.index_at, comm->next + 1, 8);
	const struct fcl_work work = {
		.data = entry,
		.bytes = l.entry_bytes,
		.va = comm->fifo_va + (uint64_t)slot * REQUESTS * l.entry_bytes,
		.rkey = comm->fifo_rkey,
		.left = &comm->unacked[slot],
	};
	const int code = fcl_qp_post(comm->qps[0], &work);
	if (code)
		return code;
	comm->unacked[slot] = 1;
	comm->capacities[comm->next % FIFO_SLOTS_MAX] = capacity_bytes;
	*ticket = comm->next++;
	return 0;
}

int fcl_recv_test(struct fcl_recv_comm *comm, uint64_t ticket, uint32_t *bytes)
{
	const struct fcl_net_settings *s = &comm->net->settings;
	const uint32_t qps = s->qps_per_connection;
	for (uint32_t i = 0; i < qps; i++) {
		const uint64_t wanted = s->split_data ? ticket + 1 : ticket / qps + 1;
		if ((s->split_data || ticket % qps == i) && comm->completions[i] < wanted)
			return 0;
	}
	*bytes = comm->sizes[ticket % FIFO_SLOTS_MAX];
	return 1;
}

/* One QP's share of a message: a write with immediate, or in the adaptive form a plain write that
 * switches may spread and an empty one with immediate behind it. */
static int post_piece(struct fcl_send_comm *comm, struct fcl_qp *qp, struct fcl_work work,
		      uint32_t message_bytes)
{
	const struct fcl_net_settings *s = &comm->net->settings;
	work.immediate =
		s->nccl_version >= V2_29 ? message_bytes : __builtin_bswap32(message_bytes);
	work.has_immediate = true;
	if (s->adaptive && message_bytes > AR_THRESHOLD) {
		struct fcl_work plain = work;
		plain.has_immediate = false;
		++*work.left;
		const int code = fcl_qp_post(qp, &plain);
		if (code)
			return code;
		work.va = 0;
		work.rkey = work.bytes = 0;
	}
	++*work.left;
	return fcl_qp_post(qp, &work);
}

static bool has_room(const struct fcl_send_comm *comm)
{
	if (comm->left[comm->next % SENDS_MAX])
		return false;
	for (uint32_t i = 0; i < comm->net->settings.qps_per_connection; i++)
		if (comm->qps[i]->next_work - comm->qps[i]->first_work > FCL_WORKS - 2)
			return false;
	return true;
}

int fcl_isend(struct fcl_send_comm *comm, const void *data, uint32_t bytes, uint64_t *ticket)
{
	const struct fcl_net_settings *s = &comm->net->settings;
	const struct fcl_cts_layout l = fcl_cts_layout(s->nccl_version);
	const uint64_t slot = comm->next % fcl_cts_slots(s->nccl_version);
	const uint8_t *entry = comm->fifo + slot * REQUESTS * l.entry_bytes;
	if (bytes > MESSAGE_MAX)
		return fcl_fail(EMSGSIZE, "a message of %u bytes is larger than %d", bytes,
				MESSAGE_MAX);
	if (fcl_get_le(entry + l.index_at, 8) != comm->next + 1 || !has_room(comm))
		return -EAGAIN;
	if (fcl_get_le(entry + l.nreqs_at, 4) != 1 ||
	    fcl_get_le(entry + l.size_at, l.size_bytes) < bytes)
		return fcl_fail(EMSGSIZE, "the receiver granted %llu bytes, the message has %u",
				(unsigned long long)fcl_get_le(entry + l.size_at, l.size_bytes),
				bytes);
	const uint32_t qps = s->qps_per_connection;
	const uint32_t share =
		s->split_data && qps > 1
			? ((bytes + qps - 1) / qps + SPLIT_ALIGN - 1) / SPLIT_ALIGN * SPLIT_ALIGN
			: bytes;
	uint32_t *left = &comm->left[comm->next % SENDS_MAX];
	for (uint32_t i = 0; i < qps; i++) {
		if (!s->split_data && comm->next % qps != i)
			continue;
		const uint32_t wanted = s->split_data ? i * share : 0;
		const uint32_t begin = wanted < bytes ? wanted : bytes;
		const struct fcl_work work = {
			.data = (const uint8_t *)data + begin,
			.bytes = bytes - begin < share ? bytes - begin : share,
			/* An empty piece: older releases went on by shares, newer ones stop at the end. */
			.va = fcl_get_le(entry, 8) + (s->nccl_version < FCL_V2_30 ? wanted : begin),
			.rkey = (uint32_t)fcl_get_le(entry + l.rkeys_at, 4),
			.left = left,
		};
		const int code = post_piece(comm, comm->qps[i], work, bytes);
		if (code)
			return code;
	}
	*ticket = comm->next++;
	return 0;
}

int fcl_send_test(struct fcl_send_comm *comm, uint64_t ticket)
{
	return !comm->left[ticket % SENDS_MAX];
}
