/* The parser's loop: spans of slots, each committed as a whole. What a span
 * changes in the flow table can be taken back until `parsed` has moved. */
#include <errno.h>
#include <stdlib.h>

#include "fc_error.h"
#include "fc_flow_ops.h"

/* Slots ahead whose headers are fetched: about one memory latency of parsing. */
#define PREFETCH_SLOTS 24

int fc_parser_open(struct fc_ring *ring, struct fc_flows *flows, uint32_t icrc_every,
		   struct fc_parser **out)
{
	*out = NULL;
	if (!flows->map.writable)
		return fc_fail(EACCES, "the flow table was opened to read only");
	if (flows->mask + 1 < 2 * (ring->mask + 1))
		return fc_fail(
			EINVAL, "%llu message records for %llu slots: twice as many are needed",
			(unsigned long long)flows->mask + 1, (unsigned long long)ring->mask + 1);
	const uint64_t parsed = fc_ring_parsed(ring);
	const int code = fc_undo_roll_back(flows, parsed);
	if (code < 0)
		return code;
	struct fc_parser *parser = calloc(1, sizeof *parser);
	uint32_t *epochs = calloc(flows->mask + 1, sizeof *epochs);
	if (!parser || !epochs) {
		free(parser);
		free(epochs);
		return fc_fail(ENOMEM, "no memory for the parser's own tables");
	}
	parser->ring = ring;
	parser->flows = flows;
	parser->message_epochs = epochs;
	parser->icrc_every = icrc_every;
	parser->counters = FC_COMMITTED(ring->header->parse, parsed)->counters;
	*out = parser;
	return 0;
}

void fc_parser_close(struct fc_parser *parser)
{
	if (parser)
		free(parser->message_epochs);
	free(parser);
}

static void prefetch_headers(const struct fc_ring *ring, uint64_t position)
{
	const uint8_t *slot = (const uint8_t *)fc_ring_slot(ring, position);

	/* The slot's header, to be written; then IP and UDP; BTH, RETH and first line. */
	__builtin_prefetch(slot, 1);
	__builtin_prefetch(slot + 64);
	__builtin_prefetch(slot + 128);
}

/* Capture is another process; a slot that lies about its length is cut to size. */
static uint32_t frame_bytes(const struct fc_ring *ring, const struct fc_slot *slot)
{
	const uint32_t room = ring->slot_bytes - FC_SLOT_HEADER_BYTES;

	return slot->frame_bytes < room ? slot->frame_bytes : room;
}

static bool has_flow(const struct fc_packet *p)
{
	switch (p->verdict) {
	case FC_WRITE:
	case FC_ACK:
	case FC_NAK:
	case FC_SEND:
	case FC_READ:
	case FC_ATOMIC:
		return !(p->flags & FC_PACKET_SHIM && p->verdict != FC_WRITE);
	default:
		return false;
	}
}

/* Pass one: what each frame is by itself, and its flow's index line on its way. */
static void decode_slots(struct fc_parser *parser, uint64_t first, uint64_t count, uint64_t head)
{
	const uint32_t every = parser->icrc_every;
	/* By position, so that a parser that starts again checks the same slots. */
	uint32_t until_check = every ? (uint32_t)((every - first % every) % every) : UINT32_MAX;

	for (uint64_t i = 0; i < count; i++) {
		if (first + i + PREFETCH_SLOTS < head)
			prefetch_headers(parser->ring, first + i + PREFETCH_SLOTS);
		const struct fc_slot *slot = fc_ring_slot(parser->ring, first + i);
		struct fc_packet *p = &parser->packets[i];
		fc_decode(slot->frame, frame_bytes(parser->ring, slot), slot->wire_bytes, p);
		if (every && until_check-- == 0) {
			until_check = every - 1;
			if (p->flags & FC_PACKET_ROCE) {
				p->flags |= FC_PACKET_ICRC_CHECKED;
				if (!fc_icrc_right(slot->frame, p))
					p->verdict = FC_ICRC_BAD;
			}
		}
		if (p->flags & FC_PACKET_ROCE) {
			parser->hashes[i] = fc_key_hash(&p->key);
			__builtin_prefetch(&parser->flows->index[parser->hashes[i] >> 32 &
								 (FC_INDEX_ENTRIES - 1)]);
		}
	}
}

static void note_bad_icrc(struct fc_parser *parser, const struct fc_packet *p, uint64_t hash)
{
	struct fc_flow *flow = fc_flow_find(parser->flows, &p->key, hash);

	if (flow) {
		fc_touch_flow(parser, flow);
		flow->icrc_bad_frames++;
	}
}

/* Pass two: the packet into its flow, the mark into its slot. */
static void finish_slot(struct fc_parser *parser, struct fc_slot *slot, uint64_t i)
{
	const struct fc_packet *p = &parser->packets[i];
	struct fc_mark mark = {
		.flow = FC_NO_FLOW,
		.payload_at = p->payload_at,
		.payload_bytes = p->payload_bytes,
		.verdict = p->verdict,
		.opcode = p->opcode,
	};
	struct fc_arrival arrival = {
		.parser = parser,
		.packet = p,
		.frame = slot->frame,
		.mark = &mark,
		.hash = parser->hashes[i],
		.now_ns = slot->timestamp_ns,
	};

	if (FC_LIKELY(has_flow(p)))
		mark.verdict = (uint8_t)fc_assemble(&arrival);
	else if (p->verdict == FC_ICRC_BAD)
		note_bad_icrc(parser, p, parser->hashes[i]);
	uint64_t *by_verdict = (uint64_t *)&parser->counters;
	by_verdict[mark.verdict]++;
	parser->counters.vlan_frames += (p->flags & FC_PACKET_VLAN) != 0;
	parser->counters.icrc_checked_frames += (p->flags & FC_PACKET_ICRC_CHECKED) != 0;
	slot->mark = mark;
}

/* Counters, then position, then the journal's end: a kill between any two is
 * told apart by which position the journal and the counters name. */
static void commit(struct fc_parser *parser, uint64_t parsed)
{
	struct fc_ring_header *header = parser->ring->header;
	const int current = FC_COMMITTED(header->parse, header->parsed) == &header->parse[1];
	struct fc_parse_commit *copy = &header->parse[1 - current];

	copy->counters = parser->counters;
	copy->at_position = parsed;
	FC_STORE_RELEASE(&header->parsed, parsed); /* pairs with fc_ring_parsed() */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	fc_undo_end(parser->flows);
}

static bool journal_full(const struct fc_parser *parser)
{
	return parser->flows->header->undo_used_bytes > FC_UNDO_BYTES - FC_UNDO_PACKET_BYTES;
}

/* One span, or as much of it as the journal holds. Returns the slots committed. */
static uint64_t parse_some(struct fc_parser *parser, uint64_t first, uint64_t count, uint64_t head)
{
	uint64_t done = 0;

	fc_undo_begin(parser, first);
	while (done < count && !journal_full(parser)) {
		const uint64_t left = count - done;
		const uint64_t batch = left < FC_BATCH_SLOTS ? left : FC_BATCH_SLOTS;
		const uint64_t base = first + done;
		decode_slots(parser, base, batch, head);
		for (uint64_t i = 0; i < batch && !journal_full(parser); i++, done++)
			finish_slot(parser, fc_ring_slot(parser->ring, base + i), i);
	}
	commit(parser, first + done);
	return done;
}

int64_t fc_parse_span(struct fc_parser *parser, uint64_t limit)
{
	/* pairs with capture's release of head */
	const uint64_t head = fc_ring_head(parser->ring);
	const uint64_t start = parser->ring->header->parsed;
	const uint64_t stop = head - start < limit ? head : start + limit;

	for (uint64_t at = start; at < stop;) {
		const uint64_t count = stop - at < FC_SPAN_SLOTS ? stop - at : FC_SPAN_SLOTS;
		at += parse_some(parser, at, count, head);
	}
	return (int64_t)(stop - start);
}
