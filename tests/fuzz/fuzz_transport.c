/* libFuzzer on the parser and the message assembler. Input: frames, each behind
 * two bytes of length and one of options. They go through a real ring and flow
 * table in memory files; then every promise a reader relies on is checked. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fc_flow_ops.h"
#include "fc_icrc.h"

#define SLOTS 64
#define SLOT_BYTES 4352

static struct fc_ring ring;
static struct fc_flows flows;
static struct fc_parser *parser;
static uint64_t frames_total;

static void demand(bool holds, const char *promise)
{
	if (!holds) {
		fprintf(stderr, "broken promise: %s\n", promise);
		abort();
	}
}

static void open_all(void)
{
	char ring_path[64], flows_path[64];

	snprintf(ring_path, sizeof ring_path, "/dev/shm/fc-fuzz-ring-%d", (int)getpid());
	snprintf(flows_path, sizeof flows_path, "/dev/shm/fc-fuzz-flows-%d", (int)getpid());
	demand(fc_ring_create(ring_path, SLOTS, SLOT_BYTES, 1, &ring) == 0, "a ring opens");
	demand(fc_flows_create(flows_path, 2 * SLOTS, &flows) == 0, "a table opens");
	unlink(ring_path);
	unlink(flows_path);
}

/* Every input starts with an empty table; the ring only moves on. */
static void start_afresh(void)
{
	const uint64_t used = flows.header->flows_used;

	fc_parser_close(parser);
	parser = NULL;
	memset(flows.flows, 0, (used + 1) * sizeof *flows.flows);
	if (used)
		memset(flows.index, 0, FC_INDEX_ENTRIES * sizeof *flows.index);
	memset(flows.messages, 0, 2 * SLOTS * sizeof *flows.messages);
	flows.header->flows_used = flows.header->flows_made = 0;
	flows.header->messages_made = 0;
	demand(flows.header->undo_used_bytes == 0, "a commit clears the journal");
}

static void check_message(const struct fc_mark *mark)
{
	struct fc_message message;

	demand(fc_flows_message(&flows, mark->message, &message), "a mark's message is kept");
	demand(message.flow == mark->flow, "a message belongs to the mark's flow");
	demand(mark->psn >= message.first_psn && mark->psn < fc_message_stop(&message),
	       "a packet lies in its message");
	demand((uint64_t)mark->offset_bytes + mark->payload_bytes <= message.length_bytes,
	       "a payload ends inside its message");
	demand(message.packets_seen <= message.packets, "no packet is counted twice");
	/* A NAK refuses the one as the other. */
	demand(mark->verdict == FC_REFUSED ||
		       (message.kind == FC_KIND_WRITE) == (mark->verdict != FC_SEND),
	       "a write's message is a write");
	if (message.kind != FC_KIND_WRITE)
		demand(message.kind == FC_KIND_SEND && message.number == FC_NUMBER_UNKNOWN &&
			       (message.packets_seen == 0 || message.flags & FC_MESSAGE_LAST),
		       "a SEND is whole only with its ends and has no number");
	demand(!(message.flags & FC_MESSAGE_REFUSED) || message.packets_seen == 0,
	       "what was refused is never complete");
}

/* bad: the frame's ICRC is wrong, as its bytes alone tell. */
static void check_slot(uint64_t position, bool bad)
{
	const struct fc_slot *slot = fc_ring_slot(&ring, position);
	const struct fc_mark *mark = &slot->mark;

	demand(mark->verdict < FC_VERDICTS, "a verdict is one of the list");
	demand((mark->verdict == FC_ICRC_BAD) == bad, "an ICRC is believed for its own bytes only");
	demand((uint32_t)mark->payload_at + mark->payload_bytes <= slot->frame_bytes,
	       "a payload lies in its frame");
	demand(mark->flow == FC_NO_FLOW || mark->flow < flows.header->flows_used,
	       "a mark's flow exists");
	const bool may = mark->verdict == FC_SEND || mark->verdict == FC_REFUSED;
	if (mark->verdict == FC_WRITE || (may && mark->message))
		check_message(mark);
	else
		demand(mark->message == 0, "only writes and SENDs have messages");
}

/* The messages of a flow descend and do not overlap. */
static void check_chain(const struct fc_flow *flow)
{
	uint64_t edge = UINT64_MAX;
	const struct fc_message *m = fc_message_at(&flows, flow->last_message);

	while (m) {
		demand(m->packets && fc_message_stop(m) <= edge, "messages do not overlap");
		edge = m->first_psn;
		m = fc_message_at(&flows, m->previous);
	}
}

static void check_flows(void)
{
	for (uint64_t i = 0; i < flows.header->flows_used; i++) {
		const struct fc_flow *flow = &flows.flows[i];
		uint64_t edge = flow->first_psn;
		check_chain(flow);
		demand(flow->holes_used <= FC_FLOW_HOLES, "holes fit their list");
		for (uint64_t h = 0; h < flow->holes_used; h++) {
			demand(flow->holes[h].start >= edge &&
				       flow->holes[h].start < flow->holes[h].stop,
			       "holes ascend and are not empty");
			edge = flow->holes[h].stop;
		}
		demand(edge <= flow->next_psn || flow->holes_used == 0, "holes end below next_psn");
	}
}

static void check_counters(uint64_t frames)
{
	struct fc_parse_commit commit;
	uint64_t sum = 0, counters[sizeof commit.counters / 8];

	fc_ring_parse_counters(&ring, &commit);
	memcpy(counters, &commit.counters, sizeof counters);
	for (int verdict = 0; verdict < FC_VERDICTS; verdict++)
		sum += counters[verdict];
	demand(sum == frames, "frames are the sum of verdicts");
}

/* Mends the ICRC where the input asks for it: no fuzzer guesses a CRC. */
static void mend(uint8_t *frame, uint32_t bytes)
{
	struct fc_packet packet;

	fc_decode(frame, bytes, bytes, &packet);
	if (!(packet.flags & FC_PACKET_ROCE))
		return;
	const uint32_t crc =
		fc_icrc(frame, packet.l3_at, packet.udp_at, packet.bth_at, packet.icrc_at);
	for (int byte = 0; byte < 4; byte++)
		frame[packet.icrc_at + byte] = (uint8_t)(crc >> 8 * byte);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fc_capture_commit commit = { 0 };
	uint64_t put = 0;
	bool bad[SLOTS];

	if (!ring.header)
		open_all();
	start_afresh();
	demand(fc_parser_open(&ring, &flows, 1, &parser) == 0, "a parser opens");
	while (size >= 3 && put < SLOTS) {
		size_t bytes = (size_t)data[0] << 8 | data[1];
		const uint8_t options = data[2];
		data += 3;
		size -= 3;
		if (bytes > size)
			bytes = size;
		if (bytes > SLOT_BYTES - FC_SLOT_HEADER_BYTES)
			bytes = SLOT_BYTES - FC_SLOT_HEADER_BYTES;
		/* An allocation of its own: the sanitizer sees one byte too many. */
		uint8_t *frame = malloc(bytes ? bytes : 1);
		struct fc_packet packet;
		memcpy(frame, data, bytes);
		if (options & 1)
			mend(frame, (uint32_t)bytes);
		bad[put] = fc_parse_frame_verdict(frame, (uint32_t)bytes,
						  (uint32_t)bytes + (options >> 1 & 1),
						  &packet) == FC_ICRC_BAD;
		demand(fc_ring_put(&ring, put, frame, (uint32_t)bytes,
				   (uint32_t)bytes + (options >> 1 & 1), put, put) == 0,
		       "an empty ring takes a frame");
		free(frame);
		data += bytes;
		size -= bytes;
		put++;
	}
	fc_ring_publish(&ring, put, &commit);
	const uint64_t first = fc_ring_parsed(&ring);
	while (fc_parse_span(parser, 7))
		continue;
	frames_total += put;
	for (uint64_t i = 0; i < put; i++)
		check_slot(first + i, bad[i]);
	check_flows();
	check_counters(frames_total);
	FC_STORE_RELEASE(&ring.reader->tail, first + put);
	return 0;
}
