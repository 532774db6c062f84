/* Two of the lab's ports on a wire inside the process that loses, repeats, swaps and damages frames, for
 * sanitizers: every frame is handed over in memory of exactly its size.
 *   storm honest SEED MESSAGES   bytes must arrive whatever the wire does; PSNs start just before they wrap
 *   storm hostile SEED MESSAGES  damaged frames have a right ICRC; nothing is promised but memory
 * Prints what was counted; ends with 1 and a sentence when a promise is broken. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fcl_error.h"
#include "storm_wire.h"

enum {
	WAYS = 3,
	SLOTS = 8,
	ROOM = 4096,
	PMTU = 256,
	UNTOUCHED = 0xee,
	LIMIT_MS = 40000,
	HOSTILE_TURNS = 20000,
};

static void demand(int holds, const char *promise)
{
	if (holds)
		return;
	fprintf(stderr, "broken promise: %s (%s)\n", promise, fcl_error());
	exit(1);
}

/* One way from a port to the other. What is sent follows from way and number. */
struct way {
	struct fcl_send_comm *send;
	struct fcl_recv_comm *recv;
	struct fcl_region *region;
	uint8_t *memory, *data[SLOTS];
	uint64_t sent, acked, posted, came;
};

static uint32_t size_of(int way, uint64_t number)
{
	const uint32_t mixed = (uint32_t)(number * 2654435761u + (uint32_t)way * 40503u) >> 7;
	return mixed % 5 ? mixed % (ROOM - 100) : mixed % 3;
}

static uint8_t byte_of(int way, uint64_t number, uint32_t at)
{
	return (uint8_t)(at * 31 + number * 7 + (uint64_t)way * 101 + (at >> 8));
}

static void check_message(struct way *way, int number, uint32_t came)
{
	const uint8_t *slot = way->memory + way->came % SLOTS * ROOM;
	demand(came == size_of(number, way->came), "the length is what was sent");
	for (uint32_t at = 0; at < came; at++)
		demand(slot[at] == byte_of(number, way->came, at), "bytes arrive as sent");
	for (uint32_t at = came; at < ROOM; at++)
		demand(slot[at] == UNTOUCHED, "nothing is written beyond the message");
}

/* 1 while something is to do, 0 at the end, negative when the transport gave up. */
static int advance(struct way *way, int number, uint64_t messages)
{
	uint64_t ticket;
	uint32_t came;
	while (way->came < way->posted && fcl_recv_test(way->recv, way->came, &came)) {
		demand(came <= size_of(number, way->came), "no more came than was granted");
		if (!storm_hostile)
			check_message(way, number, came);
		memset(way->memory + way->came++ % SLOTS * ROOM, UNTOUCHED, ROOM);
	}
	while (way->posted < messages && way->posted < way->came + SLOTS) {
		const int code = fcl_irecv(way->recv, way->region, way->posted % SLOTS * ROOM,
					   size_of(number, way->posted), &ticket);
		if (code == -EAGAIN)
			break;
		demand(code == 0 && ticket == way->posted, "a receive is posted");
		way->posted++;
	}
	while (way->acked < way->sent && fcl_send_test(way->send, way->acked))
		free(way->data[way->acked++ % SLOTS]);
	while (way->sent < messages && way->sent < way->acked + SLOTS) {
		const uint32_t bytes = size_of(number, way->sent);
		uint8_t *data = malloc(bytes ? bytes : 1);
		for (uint32_t at = 0; at < bytes; at++)
			data[at] = byte_of(number, way->sent, at);
		const int code = fcl_isend(way->send, data, bytes, &ticket);
		if (code < 0)
			free(data);
		if (code == -EAGAIN)
			break;
		if (code < 0)
			return code;
		way->data[way->sent++ % SLOTS] = data;
	}
	return way->came < messages || way->acked < messages;
}

/* As if 2^24 - 20 packets had been sent and received. */
static void age(struct fcl_net *net)
{
	for (struct fcl_qp *qp = net->qps; qp; qp = qp->next)
		qp->next_psn = qp->unacked_psn = qp->sending_psn = qp->highest_psn =
			qp->expected_psn = FCL_PSN_MASK - 20;
}

/* A refusal ends a connection; so that there is more to damage, the peers agree again where they are. */
static void make_up(struct fcl_net *net, struct fcl_net *other)
{
	for (struct fcl_qp *qp = net->qps; qp; qp = qp->next)
		for (struct fcl_qp *peer = other->qps; peer; peer = peer->next)
			if (peer->number == qp->peer_number) {
				qp->expected_psn = peer->unacked_psn;
				qp->refused = qp->in_message = false;
			}
}

/* Some frames in a row with a right ICRC that say anything about a connection that exists. */
static void forge(struct fcl_net *from, const struct fcl_net *to)
{
	static const uint32_t lengths[] = { 0,          1,         PMTU,
					    PMTU + 1,   ROOM,      SLOTS * ROOM,
					    0x7fffffff, 0xffffffff };
	static uint8_t payload[FCL_PAYLOAD_MAX];
	const struct fcl_qp *qp = from->qps, *peer = to->qps;
	const struct fcl_region *region = to->regions;
	for (uint32_t skip = storm_draw(8); skip && qp->next; skip--)
		qp = qp->next;
	while (peer->number != qp->peer_number)
		peer = peer->next;
	for (uint32_t skip = storm_draw(5); skip && region->next; skip--)
		region = region->next;
	const bool acks = storm_draw(3) == 0;
	for (uint32_t nth = 0; nth < 4; nth++) {
		const uint32_t length =
			storm_draw(2) ? storm_draw(3 * PMTU) : lengths[storm_draw(8)];
		const bool fits = length <= region->bytes && storm_draw(4);
		const struct fcl_packet packet = {
			.opcode = (uint8_t)(acks ? 0x11 : 0x06 + storm_draw(6)),
			.ack_request = storm_draw(2),
			.dest_qp = qp->peer_number,
			.psn = (acks ? peer->unacked_psn + storm_draw(80) - 10
				     : peer->expected_psn + nth),
			.va = region->va + region->bytes - (fits ? length : storm_draw(PMTU)),
			.rkey = region->rkey + !storm_draw(10),
			.dma_length = length,
			.immediate = lengths[storm_draw(8)],
			.syndrome = (uint8_t)(storm_draw(3) ? 0x1f : storm_draw(256)),
			.payload = payload,
			.payload_bytes = length < PMTU || !storm_draw(4) ? length % PMTU : PMTU,
		};
		fcl_net_emit(from, &qp->path, &packet);
	}
}

static void connect_way(struct fcl_net *from, struct fcl_net *to, struct way *way)
{
	uint8_t at_sender[FCL_HANDLE_BYTES], at_receiver[FCL_HANDLE_BYTES];
	way->memory = malloc(SLOTS * ROOM);
	memset(way->memory, UNTOUCHED, SLOTS * ROOM);
	demand(!fcl_region_open(to, way->memory, SLOTS * ROOM, 0x7f1200000000, &way->region) &&
		       !fcl_send_open(from, at_sender, &way->send) &&
		       !fcl_recv_open(to, 0, at_receiver, &way->recv) &&
		       !fcl_send_connect(way->send, at_receiver) &&
		       !fcl_recv_connect(way->recv, at_sender),
	       "a connection is made");
}

static void close_way(struct way *way)
{
	fcl_send_close(way->send);
	fcl_recv_close(way->recv);
	for (; way->acked < way->sent; way->acked++)
		free(way->data[way->acked % SLOTS]);
	fcl_region_close(way->region);
	free(way->memory);
}

static void report(const struct fcl_net *net, unsigned long long refusals, uint64_t came)
{
	const struct fcl_net_counters *c = &net->counters;
	printf("{\"damaged\": %llu, \"refusals\": %llu, \"icrc_bad\": %llu, \"duplicates\": %llu, "
	       "\"retransmitted\": %llu, \"naks\": %llu, \"foreign\": %llu, \"came\": %llu}\n",
	       storm_damaged, refusals, (unsigned long long)c->icrc_bad_frames,
	       (unsigned long long)c->duplicate_frames, (unsigned long long)c->retransmitted_frames,
	       (unsigned long long)(c->naks_sent + c->naks_received),
	       (unsigned long long)c->foreign_frames, (unsigned long long)came);
}

int main(int count, char **words)
{
	static const uint32_t versions[] = { 21900, 22000, 22400, 23000 };
	struct fcl_net *nets[2];
	struct way ways[2 * WAYS] = { 0 };
	demand(count == 4, "three words");
	storm_hostile = !strcmp(words[1], "hostile");
	storm_dice.random = strtoull(words[2], NULL, 10);
	const uint64_t messages = strtoull(words[3], NULL, 10);
	struct fcl_net_settings settings = {
		.pmtu_bytes = PMTU,
		.nccl_version = versions[storm_draw(4)],
		.qps_per_connection = 1 + storm_draw(3),
		.split_data = storm_draw(2),
		.adaptive = storm_draw(2),
		.random_qpn = storm_draw(2),
		.timeout_ms = 2,
		.retries = 1000,
		.loss = storm_draw(2) * 0.02,
		.reorder = storm_draw(2) * 0.05,
		.seed = 1 + storm_draw(1000),
	};
	for (int i = 0; i < 2; i++) {
		settings.interface[0] = (char)('0' + i);
		demand(fcl_net_open(&settings, &nets[i]) == 0, "a port opens");
	}
	for (int i = 0; i < 2 * WAYS; i++)
		connect_way(nets[i & 1], nets[!(i & 1)], &ways[i]);
	for (int i = 0; i < 2; i++)
		age(nets[i]);
	const uint64_t end_ms = fcl_net_now_ms() + LIMIT_MS;
	unsigned long long refusals = 0;
	int more = 1;
	for (int turn = 0; more && (!storm_hostile || turn < HOSTILE_TURNS); turn++) {
		more = 0;
		for (int i = 0; i < 2 * WAYS; i++) {
			const int code = advance(&ways[i], i, messages);
			refusals += code < 0;
			more |= code != 0;
		}
		for (int i = 0; i < 2; i++)
			if (storm_draw(3))
				refusals += fcl_net_progress(nets[i]) < 0;
		if (storm_hostile) {
			forge(nets[0], nets[1]);
			forge(nets[1], nets[0]);
		}
		if (storm_hostile && turn % 10 == 0) {
			make_up(nets[0], nets[1]);
			make_up(nets[1], nets[0]);
		}
		demand(storm_hostile || !refusals, "an honest wire ends no connection");
		demand(fcl_net_now_ms() < end_ms, "the exchange ends in time");
	}
	report(nets[0], refusals, ways[0].came);
	for (int i = 0; i < 2 * WAYS; i++)
		close_way(&ways[i]);
	for (int i = 0; i < 2; i++)
		fcl_net_close(nets[i]);
	return 0;
}
