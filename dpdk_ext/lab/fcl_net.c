/* The port as a whole: its queue pairs, its registered memory, its clock, and what goes out and in. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fcl_error.h"
#include "fcl_port.h"

enum {
	TURN_PACKETS = 1,    /* of one QP before the next one's turn */
	ROUNDS = 128,        /* of all QPs before what came is looked at again */
	RECEIVE_BATCHES = 8, /* before anything is sent */
	KEPT_LIMIT_MS = 2,   /* how long a frame is kept back to be reordered */
	FIRST_QPN_SPAN = 0xffff,
	RANDOM_QPN_SPAN = (1 << FCL_BLOCK_SHIFT) - 0x200,
};

uint64_t fcl_net_now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* splitmix64 (Steele, Lea, Flood 2014). */
uint64_t fcl_net_random(struct fcl_net *net)
{
	uint64_t z = net->random += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static bool chance(struct fcl_net *net, double probability)
{
	return probability > 0 && (double)(fcl_net_random(net) >> 11) * 0x1p-53 < probability;
}

static int check_settings(const struct fcl_net_settings *s)
{
	const uint32_t pmtu = s->pmtu_bytes;
	if (pmtu < FC_PMTU_MIN || pmtu > FC_PMTU_MAX || pmtu & (pmtu - 1))
		return fcl_fail(EINVAL, "path MTU %u: one of 256, 512, 1024, 2048, 4096", pmtu);
	if (s->qps_per_connection < 1 || s->qps_per_connection > FCL_QPS_MAX)
		return fcl_fail(EINVAL, "%u QPs per connection: 1 to %d", s->qps_per_connection,
				FCL_QPS_MAX);
	if (!(s->loss >= 0 && s->loss < 1) || !(s->reorder >= 0 && s->reorder < 1))
		return fcl_fail(EINVAL, "loss and reorder are probabilities below 1");
	if (!s->timeout_ms || !s->retries)
		return fcl_fail(EINVAL, "the retransmission timer and the retries must not be 0");
	if (!memchr(s->interface, 0, sizeof(s->interface)))
		return fcl_fail(EINVAL, "the interface's name is too long");
	return 0;
}

int fcl_net_open(const struct fcl_net_settings *settings, struct fcl_net **out)
{
	int code = check_settings(settings);
	if (code)
		return code;
	struct fcl_net *net = calloc(1, sizeof(*net));
	if (!net)
		return fcl_fail(ENOMEM, "no memory for a port");
	net->settings = *settings;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	net->random = settings->seed ? settings->seed
				     : (uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec ^
					       (uint64_t)getpid();
	code = fcl_nic_open(settings->interface, settings->pmtu_bytes, &net->nic);
	if (code) {
		free(net);
		return code;
	}
	/* Ranks that were given one seed must not choose the same numbers. */
	const uint8_t *ip = fcl_nic_address(net->nic)->ip;
	net->random ^= (uint64_t)fc_be32(ip) << 16 ^ fcl_nic_block(net->nic);
	net->first_qpn = (fcl_nic_block(net->nic) << FCL_BLOCK_SHIFT) + 0x100;
	net->next_qpn = net->first_qpn + (uint32_t)(fcl_net_random(net) % FIRST_QPN_SPAN);
	net->next_rkey = 0x1000 + (uint32_t)(fcl_net_random(net) & 0xffffff);
	*out = net;
	return 0;
}

void fcl_net_close(struct fcl_net *net)
{
	if (!net)
		return;
	while (net->qps)
		fcl_net_remove_qp(net->qps);
	while (net->regions)
		fcl_region_close(net->regions);
	fcl_nic_close(net->nic);
	free(net);
}

void fcl_net_read(const struct fcl_net *net, struct fcl_net_counters *out)
{
	*out = net->counters;
}

int fcl_region_open(struct fcl_net *net, void *memory, uint64_t bytes, uint64_t va,
		    struct fcl_region **out)
{
	struct fcl_region *region = calloc(1, sizeof(*region));
	if (!region)
		return fcl_fail(ENOMEM, "no memory for a region");
	net->next_rkey += 0x100;
	*region = (struct fcl_region){ net, memory, bytes, va, net->next_rkey, net->regions };
	net->regions = region;
	*out = region;
	return 0;
}

void fcl_region_close(struct fcl_region *region)
{
	struct fcl_net *net = region->net;
	for (struct fcl_qp *qp = net->qps; qp; qp = qp->next)
		if (qp->target == region) {
			qp->target = NULL;
			qp->in_message = false;
		}
	for (struct fcl_region **at = &net->regions; *at; at = &(*at)->next)
		if (*at == region) {
			*at = region->next;
			break;
		}
	free(region);
}

struct fcl_region *fcl_net_region(struct fcl_net *net, uint32_t rkey)
{
	struct fcl_region *region = net->regions;
	while (region && region->rkey != rkey)
		region = region->next;
	return region;
}

static struct fcl_qp *qp_by_number(struct fcl_net *net, uint32_t number)
{
	struct fcl_qp *qp = net->buckets[number % FCL_QP_BUCKETS];
	while (qp && qp->number != number)
		qp = qp->same_hash;
	return qp;
}

struct fcl_qp *fcl_net_add_qp(struct fcl_net *net)
{
	struct fcl_qp *qp = calloc(1, sizeof(*qp));
	if (!qp)
		return NULL;
	do
		qp->number =
			net->settings.random_qpn
				? net->first_qpn + (uint32_t)(fcl_net_random(net) % RANDOM_QPN_SPAN)
				: net->next_qpn++;
	while (qp_by_number(net, qp->number));
	qp->net = net;
	qp->next = net->qps;
	net->qps = qp;
	qp->same_hash = net->buckets[qp->number % FCL_QP_BUCKETS];
	net->buckets[qp->number % FCL_QP_BUCKETS] = qp;
	return qp;
}

void fcl_net_remove_qp(struct fcl_qp *gone)
{
	struct fcl_net *net = gone->net;
	struct fcl_qp **at = &net->qps;
	while (*at != gone)
		at = &(*at)->next;
	*at = gone->next;
	at = &net->buckets[gone->number % FCL_QP_BUCKETS];
	while (*at != gone)
		at = &(*at)->same_hash;
	*at = gone->same_hash;
	free(gone);
}

void fcl_net_connect_qp(struct fcl_qp *qp, uint32_t peer_number, const struct fcl_address *peer)
{
	const struct fcl_address *own = fcl_nic_address(qp->net->nic);
	memcpy(qp->path.source_mac, own->mac, 6);
	memcpy(qp->path.source_ip, own->ip, 4);
	memcpy(qp->path.destination_mac, peer->mac, 6);
	memcpy(qp->path.destination_ip, peer->ip, 4);
	qp->path.traffic_class = (uint8_t)qp->net->settings.traffic_class;
	/* Linux include/rdma/ib_verbs.h: rdma_calc_flow_label, rdma_flow_label_to_udp_sport; symmetric. */
	uint64_t v = (uint64_t)qp->number * peer_number;
	v ^= v >> 20;
	v ^= v >> 40;
	const uint32_t label = (uint32_t)(v & 0xfffff);
	qp->path.udp_source_port =
		(uint16_t)(((label & 0x3fff) ^ (label & 0xfc000) >> 14) | 0xc000);
	qp->peer_number = peer_number;
	qp->connected = true;
}

static bool commit(struct fcl_net *net, size_t bytes)
{
	fcl_nic_commit(net->nic, bytes);
	net->counters.tx_frames++;
	net->counters.tx_bytes += bytes;
	return true;
}

/* The frame kept back leaves now. */
static void release_kept(struct fcl_net *net)
{
	uint8_t *room = net->kept_bytes ? fcl_nic_room(net->nic) : NULL;
	if (!room)
		return;
	memcpy(room, net->kept, net->kept_bytes);
	commit(net, net->kept_bytes);
	net->kept_bytes = 0;
}

bool fcl_net_emit(struct fcl_net *net, const struct fcl_path *path, const struct fcl_packet *packet)
{
	uint8_t *room = fcl_nic_room(net->nic);
	if (!room)
		return false;
	const size_t bytes = fcl_frame_build(path, packet, room);
	if (chance(net, net->settings.loss)) {
		net->counters.dropped_frames++;
		return true;
	}
	if (!net->kept_bytes && chance(net, net->settings.reorder)) {
		memcpy(net->kept, room, bytes);
		net->kept_bytes = bytes;
		net->kept_ms = fcl_net_now_ms();
		return true;
	}
	commit(net, bytes);
	release_kept(net);
	return true;
}

static int take_frame(struct fcl_net *net, const uint8_t *frame, size_t bytes, uint64_t now_ms)
{
	struct fcl_packet packet;
	switch (fcl_frame_parse(frame, bytes, &packet)) {
	case FCL_FRAME_BAD_ICRC:
		net->counters.icrc_bad_frames++;
		return 0;
	case FCL_FRAME_FOREIGN:
		net->counters.foreign_frames++;
		return 0;
	case FCL_FRAME_GOOD:
		break;
	}
	struct fcl_qp *qp = qp_by_number(net, packet.dest_qp);
	if (!qp || !qp->connected || (packet.opcode != FC_RC_ACK && !fc_is_write(packet.opcode)) ||
	    memcmp(frame + FCL_IPV4_AT + offsetof(struct fc_ipv4, source), qp->path.destination_ip,
		   4)) {
		net->counters.foreign_frames++;
		return 0;
	}
	net->counters.rx_frames++;
	net->counters.rx_bytes += bytes;
	if (packet.opcode == FC_RC_ACK)
		return fcl_qp_acknowledged(qp, &packet, now_ms);
	fcl_qp_respond(qp, &packet);
	return 0;
}

static int receive(struct fcl_net *net, uint64_t now_ms)
{
	int done = 0;
	for (int batch = 0; batch < RECEIVE_BATCHES; batch++) {
		const int came = fcl_nic_receive(net->nic);
		if (came < 0)
			return came;
		for (int i = 0; i < came; i++) {
			size_t bytes;
			const uint8_t *frame = fcl_nic_frame(net->nic, i, &bytes);
			const int code = take_frame(net, frame, bytes, now_ms);
			if (code < 0)
				return code;
		}
		done += came;
		if (!came)
			break;
	}
	return done;
}

/* Every QP gets its turn, so that channels interleave on the wire as a NIC's do. */
static int transmit(struct fcl_net *net, uint64_t now_ms)
{
	int done = 0;
	for (struct fcl_qp *qp = net->qps; qp; qp = qp->next) {
		const int code = fcl_qp_timer(qp, now_ms);
		if (code < 0)
			return code;
		fcl_qp_send_ack(qp);
	}
	for (int round = 0, sent = 1; sent && round < ROUNDS; round++, done += sent) {
		sent = 0;
		for (struct fcl_qp *qp = net->qps; qp; qp = qp->next)
			sent += fcl_qp_send(qp, TURN_PACKETS, now_ms);
	}
	if (net->kept_bytes && now_ms - net->kept_ms >= KEPT_LIMIT_MS)
		release_kept(net);
	const int code = fcl_nic_flush(net->nic);
	return code < 0 ? code : done;
}

int fcl_net_progress(struct fcl_net *net)
{
	const uint64_t now_ms = fcl_net_now_ms();
	const int came = receive(net, now_ms);
	if (came < 0)
		return came;
	const int went = transmit(net, now_ms);
	return went < 0 ? went : came + went;
}

int fcl_net_wait(struct fcl_net *net, int wake_fd, int limit_ms)
{
	const uint64_t now_ms = fcl_net_now_ms();
	int wait_ms = net->kept_bytes && (limit_ms < 0 || limit_ms > KEPT_LIMIT_MS) ? KEPT_LIMIT_MS
										    : limit_ms;
	for (const struct fcl_qp *qp = net->qps; qp; qp = qp->next) {
		const int due_ms = fcl_qp_due_ms(qp, now_ms);
		if (due_ms >= 0 && (wait_ms < 0 || due_ms < wait_ms))
			wait_ms = due_ms;
	}
	const short wanted = fcl_nic_backlog(net->nic) ? POLLIN | POLLOUT : POLLIN;
	struct pollfd on[] = { { fcl_nic_descriptor(net->nic), wanted, 0 },
			       { wake_fd, POLLIN, 0 } };
	if (poll(on, wake_fd >= 0 ? 2 : 1, wait_ms) < 0 && errno != EINTR)
		return fcl_fail(errno, "poll: %s", strerror(errno));
	return 0;
}
