/* The parser's loop: spans of slots, each committed as a whole. Changes of a span in the flow
 * table are undone after a kill, until `parsed` has moved. */
#include <errno.h>
#include <stdlib.h>

#include "fc_error.h"
#include "fc_known_headers.h"
#include "fc_next_packet.h"

/* Each stage is so many slots ahead of the last one that what it prefetches has arrived when the
 * next stage needs it: headers, the index of flows, the flow, its newest message. */
#define HEADERS_AHEAD 8 /* of decoding */
#define DECODED_AHEAD 24
#define PEEKED_AHEAD 16
#define LOOKED_UP_AHEAD 8
/* Payloads for the ICRC are prefetched so many slots before the check, few enough to stay in the L1
 * cache. A part before each stage, because a core can have only few cache misses in
 * flight and should always have some. */
#define PAYLOAD_AHEAD 4
#define PARTS 3
/* Where nothing works ahead: slots between a frame and that whose headers are prefetched. */
#define FRAME_AHEAD 24

_Static_assert(1 + DECODED_AHEAD + HEADERS_AHEAD < FC_LINED_SLOTS &&
		       LOOKED_UP_AHEAD < PEEKED_AHEAD && PEEKED_AHEAD < DECODED_AHEAD &&
		       LOOKED_UP_AHEAD + PAYLOAD_AHEAD < DECODED_AHEAD + HEADERS_AHEAD,
	       "all slots looked at are lined up, and stages follow each other");

int fc_parser_open(struct fc_ring *ring, struct fc_flows *flows, uint32_t icrc_every,
		   struct fc_parser **out)
{
	*out = NULL;
	if (!flows->map.writable)
		return fc_fail(EACCES, FLOW_TABLE_READ_ONLY);
	if (flows->mask + 1 < 2 * (ring->mask + 1))
		return fc_fail(EINVAL, FLOW_TABLE_TOO_SMALL,
			       .numbers = { flows->mask + 1, ring->mask + 1 });
	const uint64_t parsed = fc_ring_parsed(ring);
	const int code = fc_undo_roll_back(flows, parsed);
	if (code < 0)
		return code;
	struct fc_parser *parser = calloc(1, sizeof *parser);
	struct fc_message_epochs *epochs = calloc(flows->mask + 1, sizeof *epochs);
	if (parser) {
		parser->ring = ring;
		parser->flows = flows;
		parser->message_epochs = epochs;
	}
	if (parser)
		parser->known = fc_known_open();
	if (!parser || !parser->known || !epochs || !fc_jumps_open(parser)) {
		fc_parser_close(parser);
		free(parser ? NULL : epochs);
		return fc_fail(ENOMEM, PARSER_WITHOUT_MEMORY);
	}
	parser->icrc_every = icrc_every;
	__atomic_store_n(&ring->header->icrc_every, icrc_every, __ATOMIC_RELAXED);
	struct fc_parse_commit commit;
	fc_ring_parse_counters(ring, &commit);
	parser->counters = commit.counters;
	*out = parser;
	return 0;
}

void fc_parser_close(struct fc_parser *parser)
{
	if (!parser)
		return;
	fc_jumps_close(parser);
	free(parser->known);
	free(parser->message_epochs);
	free(parser);
}

static struct fc_slot *slot_at(const struct fc_parser *parser, uint64_t position)
{
	return fc_ring_slot(parser->ring, position);
}

static const uint8_t *frame_at(const struct fc_parser *parser, uint64_t position)
{
	return parser->frames[position & (FC_LINED_SLOTS - 1)];
}

/* From here on frames are addressed in order, which needs a division only once per page. */
static void line_up_from(struct fc_parser *parser, uint64_t position)
{
	const uint64_t index = position & parser->ring->mask;

	parser->lined_up = position;
	parser->next_frame = fc_ring_frame(parser->ring, position);
	parser->left_in_page =
		parser->ring->frames_per_page - index % parser->ring->frames_per_page;
}

static void line_up(struct fc_parser *parser, uint64_t stop)
{
	while (parser->lined_up < stop) {
		parser->frames[parser->lined_up++ & (FC_LINED_SLOTS - 1)] = parser->next_frame;
		parser->next_frame += parser->ring->frame_room;
		if (FC_UNLIKELY(--parser->left_in_page == 0 ||
				(parser->lined_up & parser->ring->mask) == 0))
			line_up_from(parser, parser->lined_up);
	}
}

static void prefetch_headers(const struct fc_parser *parser, uint64_t position)
{
	const uint8_t *frame = frame_at(parser, position);

	/* The slot's header, for writing; then IP and UDP; BTH, RETH and the first line. */
	__builtin_prefetch(slot_at(parser, position), 1);
	__builtin_prefetch(frame);
	__builtin_prefetch(frame + 64);
}

/* Capture is another process; a slot with an invalid length is truncated. */
static uint32_t frame_bytes(const struct fc_ring *ring, const struct fc_slot *slot)
{
	return slot->frame_bytes < ring->frame_room ? slot->frame_bytes : ring->frame_room;
}

_Static_assert(FC_VERDICTS <= 32, "a set of verdicts fits a word");

static inline bool has_flow(const struct fc_packet *p)
{
	const uint32_t verdicts = 1u << FC_WRITE | 1u << FC_ACK | 1u << FC_NAK | 1u << FC_SEND |
				  1u << FC_READ | 1u << FC_ATOMIC;

	return verdicts >> p->verdict & 1 && !(p->flags & FC_PACKET_SHIM && p->verdict != FC_WRITE);
}

/* As fc_ring_wants_icrc(), by what this parser was told. */
static inline bool is_checked(const struct fc_parser *parser, uint64_t position)
{
	const uint64_t every = parser->icrc_every;

	return every == 1 || (FC_UNLIKELY(every) && position % every == 0);
}

/* Prefetches a part of what prefetch_headers() left out, if the ICRC has to be checked here. */
static inline void prefetch_payload(const struct fc_parser *parser, uint64_t position,
				    uint32_t part)
{
	if (position >= parser->lined_up || slot_at(parser, position)->icrc_l3_at ||
	    !is_checked(parser, position))
		return;
	const uint8_t *frame = frame_at(parser, position);
	const uint32_t bytes = frame_bytes(parser->ring, slot_at(parser, position));
	const uint32_t lines = bytes > 128 ? (bytes - 128 + 63) / 64 : 0;

	for (uint32_t n = part * lines / PARTS; n < (part + 1) * lines / PARTS; n++)
		__builtin_prefetch(frame + 128 + 64 * n);
}

/* Decodes each frame by itself, and prefetches its flow's index entry. */
static void decode_slots(struct fc_parser *parser, uint64_t stop)
{
	for (; parser->decoded < stop; parser->decoded++) {
		const uint64_t position = parser->decoded, i = position & (FC_LINED_SLOTS - 1);
		if (parser->many_flows && FC_LIKELY(position + HEADERS_AHEAD < parser->lined_up))
			prefetch_headers(parser, position + HEADERS_AHEAD);
		const struct fc_slot *slot = slot_at(parser, position);
		struct fc_packet *p = &parser->packets[i];
		fc_decode(frame_at(parser, position), frame_bytes(parser->ring, slot),
			  slot->wire_bytes, p);
		if (p->flags & FC_PACKET_ROCE) {
			parser->hashes[i] = fc_key_hash(&p->key);
			__builtin_prefetch(&parser->flows->index[parser->hashes[i] >> 32 &
								 (FC_INDEX_ENTRIES - 1)]);
		}
	}
}

/* Prefetches the flow that the packet most likely belongs to: its key, and what packets change. */
static void peek_flows(struct fc_parser *parser, uint64_t stop)
{
	if (parser->peeked < parser->looked_up)
		parser->peeked = parser->looked_up;
	for (; parser->peeked < stop; parser->peeked++) {
		const uint64_t i = parser->peeked & (FC_LINED_SLOTS - 1);
		const uint64_t at = parser->hashes[i] >> 32 & (FC_INDEX_ENTRIES - 1);
		const uint32_t flow = (uint32_t)parser->flows->index[at] - 1;
		if (FC_UNLIKELY(!has_flow(&parser->packets[i]) || flow >= FC_FLOWS_MAX))
			continue;
		__builtin_prefetch(&parser->flows->flows[flow]);
		__builtin_prefetch(&parser->flows->flows[flow].last_ns, 1);
		__builtin_prefetch(&parser->flow_epochs[flow], 1);
	}
}

/* Whether capture found the ICRC of this very packet right. Capture knows plain headers only; for
 * others it may have taken other bytes for a packet. */
static inline bool is_found_right(const struct fc_parser *parser, uint64_t position,
				  const struct fc_packet *p)
{
	const struct fc_slot *slot = slot_at(parser, position);
	const uint32_t ip_bytes = frame_at(parser, position)[p->l3_at] >> 4 == 4
					  ? sizeof(struct fc_ipv4)
					  : sizeof(struct fc_ipv6);

	return slot->icrc_l3_at && slot->icrc_l3_at == p->l3_at &&
	       p->udp_at == p->l3_at + ip_bytes && p->bth_at == p->udp_at + sizeof(struct fc_udp) &&
	       p->icrc_at + FC_ICRC_BYTES + slot->icrc_after == frame_bytes(parser->ring, slot);
}

/* Checks the ICRC, finds the flow, and prefetches the message that it most likely continues. */
static void look_up_slots(struct fc_parser *parser, uint64_t stop)
{
	for (; parser->looked_up < stop; parser->looked_up++) {
		const uint64_t position = parser->looked_up, i = position & (FC_LINED_SLOTS - 1);
		struct fc_packet *p = &parser->packets[i];
		if (p->flags & FC_PACKET_ROCE && is_checked(parser, position)) {
			p->flags |= FC_PACKET_ICRC_CHECKED;
			if (!is_found_right(parser, position, p) &&
			    !fc_icrc_right(frame_at(parser, position), p))
				p->verdict = FC_ICRC_BAD;
		}
		struct fc_flow *flow = NULL;
		if (FC_LIKELY(has_flow(p)))
			flow = fc_flow_find(parser->flows, p, parser->hashes[i]);
		parser->found[i] = flow;
		if (FC_LIKELY(flow) && parser->many_flows) {
			const uint64_t last = flow->last_message & parser->flows->mask;
			__builtin_prefetch(&parser->flows->messages[last], 1);
			__builtin_prefetch(&parser->message_epochs[last], 1);
		}
	}
}

static void note_bad_icrc(struct fc_parser *parser, const struct fc_packet *p, uint64_t hash)
{
	struct fc_flow *flow = fc_flow_find(parser->flows, p, hash);

	if (flow) {
		fc_touch_flow_rest(parser, flow);
		flow->icrc_bad_frames++;
	}
}

/* Assigns the packet to its flow and writes the mark to its slot. */
static void finish_slot(struct fc_parser *parser, uint64_t position)
{
	const uint64_t i = position & (FC_LINED_SLOTS - 1);
	struct fc_slot *slot = slot_at(parser, position);
	const struct fc_packet *p = &parser->packets[i];
	/* Not read by others before `parsed` has moved. */
	struct fc_mark *mark = &slot->mark;
	*mark = (struct fc_mark){
		.flow = FC_NO_FLOW,
		.payload_at = p->payload_at,
		.payload_bytes = p->payload_bytes,
		.verdict = p->verdict,
		.opcode = p->opcode,
	};
	struct fc_arrival arrival = {
		.parser = parser,
		.packet = p,
		.frame = frame_at(parser, position),
		.mark = mark,
		.hash = parser->hashes[i],
		.flow = parser->found[i],
		.now_ns = slot->timestamp_ns,
	};

	if (FC_LIKELY(has_flow(p)))
		mark->verdict = (uint8_t)fc_assemble(&arrival);
	else if (p->verdict == FC_ICRC_BAD)
		note_bad_icrc(parser, p, parser->hashes[i]);
	uint64_t *by_verdict = (uint64_t *)&parser->counters;
	by_verdict[mark->verdict]++;
	if (p->flags & (FC_PACKET_VLAN | FC_PACKET_ENCAPSULATED | FC_PACKET_ICRC_CHECKED)) {
		parser->counters.vlan_frames += (p->flags & FC_PACKET_VLAN) != 0;
		parser->counters.encapsulated_frames += (p->flags & FC_PACKET_ENCAPSULATED) != 0;
		parser->counters.icrc_checked_frames += (p->flags & FC_PACKET_ICRC_CHECKED) != 0;
	}
}

/* Commits in this order: counters, position, empty journal. A kill between two of them is
 * recognised by the position that the journal and the counters have. */
static void commit(struct fc_parser *parser, uint64_t parsed)
{
	struct fc_ring_header *header = parser->ring->header;
	const struct fc_parse_commit commit = { .counters = parser->counters };

	fc_commit_write(header->parse, sizeof commit, header->parsed, &commit, parsed);
	FC_STORE_RELEASE(&header->parsed, parsed); /* pairs with fc_ring_parsed() */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	fc_undo_end(parser->flows);
}

/* Takes a packet in the middle of a message whose headers are known. False: it is another frame,
 * which has to be decoded. */
static bool take_known(struct fc_parser *parser, uint64_t position)
{
	struct fc_slot *slot = slot_at(parser, position);
	const uint8_t *frame = frame_at(parser, position);
	const uint32_t bytes = frame_bytes(parser->ring, slot);
	struct fc_known_packet *known = fc_known_find(parser->known, frame, bytes);

	if (!known)
		return false;
	const struct fc_packet *p = &known->packet;
	const bool checked = is_checked(parser, position);
	const bool found_right = slot->icrc_l3_at == FC_KNOWN_L3_AT &&
				 p->icrc_at + FC_ICRC_BYTES + slot->icrc_after == bytes;
	if (checked && !found_right && !fc_icrc_right(frame, p))
		return false;
	slot->mark = (struct fc_mark){
		.payload_at = p->payload_at,
		.payload_bytes = p->payload_bytes,
		.verdict = FC_WRITE,
		.opcode = FC_RC_WRITE_MIDDLE,
	};
	struct fc_arrival arrival = {
		.parser = parser,
		.packet = p,
		.flow = known->flow,
		.mark = &slot->mark,
		.now_ns = slot->timestamp_ns,
	};
	if (!fc_place_next(&arrival, FC_RC_WRITE_MIDDLE))
		return false;
	parser->counters.write_frames++;
	parser->counters.icrc_checked_frames += checked;
	return true;
}

/* Of few flows: takes one slot, and nothing of those behind it. */
static void parse_alone(struct fc_parser *parser, uint64_t position)
{
	const uint64_t i = position & (FC_LINED_SLOTS - 1);

	if (FC_LIKELY(position + FRAME_AHEAD < parser->lined_up)) {
		prefetch_headers(parser, position + FRAME_AHEAD);
		/* Waits for the address of the frame's page, which a prefetch does not. */
		(void)*(const volatile uint8_t *)frame_at(parser, position + FRAME_AHEAD / 2);
	}
	for (uint32_t part = 0; part < PARTS; part++)
		prefetch_payload(parser, position + PAYLOAD_AHEAD, part);
	if (FC_LIKELY(!parser->general) && FC_LIKELY(take_known(parser, position)))
		return;
	parser->decoded = parser->looked_up = position;
	decode_slots(parser, position + 1);
	look_up_slots(parser, position + 1);
	finish_slot(parser, position);
	struct fc_flow *flow = parser->found[i];
	if (flow && flow - parser->flows->flows == slot_at(parser, position)->mark.flow)
		fc_known_keep(parser->known, frame_at(parser, position), &parser->packets[i], flow);
}

static bool journal_full(const struct fc_parser *parser)
{
	return parser->flows->header->undo_used_bytes > FC_UNDO_BYTES - FC_UNDO_PACKET_BYTES;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Of many flows: takes the slot at `position`, and has the stages before the last ready for those
 * behind it, none of them beyond `stop`. */
static void parse_slot(struct fc_parser *parser, uint64_t position, uint64_t stop)
{
	const uint64_t checked_next = position + LOOKED_UP_AHEAD + PAYLOAD_AHEAD;

	prefetch_payload(parser, checked_next, 0);
	decode_slots(parser, least(position + 1 + DECODED_AHEAD, stop));
	peek_flows(parser, least(position + 1 + PEEKED_AHEAD, stop));
	prefetch_payload(parser, checked_next, 1);
	look_up_slots(parser, least(position + 1 + LOOKED_UP_AHEAD, stop));
	prefetch_payload(parser, checked_next, 2);
	finish_slot(parser, position);
}

/* Parses one span, or as much of it as fits into the journal. Returns the committed slots. */
static uint64_t parse_some(struct fc_parser *parser, uint64_t first, uint64_t count, uint64_t stop,
			   uint64_t head)
{
	uint64_t done = 0;

	fc_undo_begin(parser, first);
	parser->many_flows = parser->flows->header->flows_made > FC_FEW_FLOWS;
	if (parser->decoded < first)
		parser->decoded = parser->peeked = parser->looked_up = first;
	for (; done < count && !journal_full(parser); done++) {
		line_up(parser, least(first + done + FC_LINED_SLOTS, head));
		if (parser->many_flows)
			parse_slot(parser, first + done, stop);
		else
			parse_alone(parser, first + done);
	}
	commit(parser, first + done);
	return done;
}

void fc_parser_generally(struct fc_parser *parser, uint32_t general)
{
	parser->general = general;
}

int64_t fc_parse_span(struct fc_parser *parser, uint64_t limit)
{
	/* pairs with capture's release of head */
	const uint64_t head = fc_ring_head(parser->ring);
	const uint64_t start = parser->ring->header->parsed;
	const uint64_t stop = head - start < limit ? head : start + limit;

	line_up_from(parser, start);
	parser->decoded = parser->peeked = parser->looked_up = start;
	for (uint64_t at = start; at < stop;)
		at += parse_some(parser, at, least(stop - at, FC_SPAN_SLOTS), stop, head);
	return (int64_t)(stop - start);
}
