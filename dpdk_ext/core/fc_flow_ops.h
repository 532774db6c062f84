/* Inside the parser: its state, the undo journal, and what its files call of
 * each other. fc_flow.c: table; fc_network.c: tenants; fc_holes.c: which PSNs are missing;
 * fc_chain.c: messages in PSN order; fc_jumps.c: short ways through them; fc_laps.c: blind times
 * of all PSNs; fc_owner.c: incarnations; fc_message.c: packets into messages; fc_rival.c: which
 * other ones claim them; fc_send.c: those of SENDs; fc_refuse.c: what receivers refused;
 * fc_span.c: spans. */
#ifndef FC_FLOW_OPS_H
#define FC_FLOW_OPS_H

#include "fc_common.h"
#include "fc_flow_api.h"
#include "fc_host_pairs.h"
#include "fc_parse.h"
#include "fc_ring_ops.h"
#include "fc_roce.h"

#define FC_PSN_ORIGIN (1ull << 32)
#define FC_NUMBER_UNKNOWN UINT64_MAX
/* More packets than any NIC has in flight or a switch can reorder: beyond,
 * a PSN says nothing about its neighbours. */
#define FC_PSN_FAR 65536
/* After so many PSNs they are the same again. */
#define FC_PSN_LAP (1ull << 24)
/* They take longer on any port, in nanoseconds. */
#define FC_PAUSE_NS 20000000ull
#define FC_INDEX_ENTRIES (2u * FC_FLOWS_MAX)
#define FC_UNDO_BYTES (1u << 20)
/* More than one packet can add to the journal: two flows, and a message with
 * FC_RENUMBER_MAX after it, or FC_REFUSE_MAX that are refused at once. */
#define FC_UNDO_PACKET_BYTES 131072
#define FC_REFUSE_MAX 1024
#define FC_RENUMBER_MAX 64
/* Messages that may give way to one. */
#define FC_RIVALS_MAX 32
/* Slots decoded before the first of them is assembled: enough to hide what misses the
 * first cache, few enough that two batches' payloads stay in it. */
#define FC_BATCH_SLOTS 4
/* Slots whose addresses are at hand: this batch and what is fetched ahead. */
#define FC_LINED_SLOTS 64

/* Is it a write or a SEND packet: part of a message that a flow is followed for? */
static inline bool fc_is_of_message(const struct fc_packet *p)
{
	return p->verdict == FC_WRITE || p->verdict == FC_SEND;
}

struct fc_flow_epochs {
	uint32_t packet, rest, holes;
};

struct fc_message_epochs {
	uint32_t packet, rest;
};

struct fc_parser {
	struct fc_ring *ring;
	struct fc_flows *flows;
	struct fc_parse_counters counters;
	uint32_t icrc_every;
	/* Parts of records journalled since the span began bear its epoch. */
	uint32_t epoch;
	struct fc_message_epochs *message_epochs;
	struct fc_jump *jumps; /* by record; `flows` names them, too */
	struct fc_flow_epochs flow_epochs[FC_FLOWS_MAX];
	struct fc_host_pairs host_pairs;
	uint64_t hashes[FC_BATCH_SLOTS];
	struct fc_packet packets[FC_BATCH_SLOTS];
	struct fc_slot *slots[FC_LINED_SLOTS]; /* by position, those just before lined_up */
	uint64_t lined_up, left_in_page;
	uint8_t *next_slot;
	struct fc_flow *found[FC_BATCH_SLOTS]; /* before the batch changed any; or NULL */
};

/* A packet on its way into its flow. */
struct fc_arrival {
	struct fc_parser *parser;
	const struct fc_packet *packet;
	const uint8_t *frame;
	struct fc_flow *flow;
	struct fc_flow *list; /* the first owner of the key in the packet's network */
	struct fc_mark *mark;
	uint64_t hash, now_ns;
	uint64_t psn;      /* unwrapped */
	bool summed;       /* its ICRC is right, or nobody wants to know */
	bool leapt;        /* its owner goes on far from where it was */
	bool contested;    /* its owner is silent while another one of the key sends */
	uint32_t standing; /* enum fc_message_standing of the message it begins */
	/* Not FC_WRITE: it is of no network that its queue pair is followed in, and this its verdict. */
	enum fc_verdict outside;
};

/* Where a PSN falls among the messages of its flow. */
struct fc_neighbours {
	struct fc_message *at;     /* covers the PSN */
	struct fc_message *before; /* the nearest that ends at or before it */
	struct fc_message *after;  /* the nearest that starts behind it */
	bool forgotten;            /* older records are gone or too far back */
};

/* Behind the old bytes of each entry, so that the journal is read from its end. */
struct fc_undo_tail {
	uint64_t offset; /* of the record in the file */
	uint64_t bytes;
};

/* Copies `bytes` at `record` into the journal; from here on a kill brings them back. */
static inline void fc_journal(struct fc_parser *parser, const void *record, uint32_t bytes)
{
	struct fc_flows *flows = parser->flows;
	uint8_t *entry = flows->undo + flows->header->undo_used_bytes;
	const uint32_t padded = (bytes + 7u) & ~7u;
	const struct fc_undo_tail tail = {
		.offset = (uint64_t)((const uint8_t *)record - flows->map.base),
		.bytes = bytes,
	};

	memcpy(entry, record, bytes);
	memcpy(entry + padded, &tail, sizeof tail);
	/* A kill keeps program order, so the compiler is the only one to hold back. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	flows->header->undo_used_bytes += padded + sizeof tail;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* Each record has parts that are journalled apart, once a span each: what every
 * packet changes is small. A part is touched before it is changed. */
static inline void fc_touch(struct fc_parser *parser, uint32_t *epoch, const void *part,
			    uint32_t bytes)
{
	if (*epoch != parser->epoch) {
		*epoch = parser->epoch;
		fc_journal(parser, part, bytes);
	}
}

/* last_ns to has_immediates */
static inline void fc_touch_flow_packet(struct fc_parser *parser, struct fc_flow *flow)
{
	fc_touch(parser, &parser->flow_epochs[flow - parser->flows->flows].packet, &flow->last_ns,
		 offsetof(struct fc_flow, first_psn) - offsetof(struct fc_flow, last_ns));
}

/* first_psn to holes_used */
static inline void fc_touch_flow_rest(struct fc_parser *parser, struct fc_flow *flow)
{
	fc_touch(parser, &parser->flow_epochs[flow - parser->flows->flows].rest, &flow->first_psn,
		 offsetof(struct fc_flow, holes) - offsetof(struct fc_flow, first_psn));
}

static inline void fc_touch_holes(struct fc_parser *parser, struct fc_flow *flow)
{
	fc_touch_flow_rest(parser, flow);
	fc_touch(parser, &parser->flow_epochs[flow - parser->flows->flows].holes, flow->holes,
		 sizeof flow->holes);
}

/* last_ns to spare */
static inline void fc_touch_message_packet(struct fc_parser *parser, struct fc_message *message)
{
	fc_touch(parser, &parser->message_epochs[message - parser->flows->messages].packet,
		 &message->last_ns,
		 offsetof(struct fc_message, number) - offsetof(struct fc_message, last_ns));
}

/* All of it. */
static inline void fc_touch_message(struct fc_parser *parser, struct fc_message *message)
{
	uint32_t *epoch = &parser->message_epochs[message - parser->flows->messages].rest;

	fc_touch_message_packet(parser, message);
	if (*epoch != parser->epoch) {
		*epoch = parser->epoch;
		fc_journal(parser, message, offsetof(struct fc_message, last_ns));
		fc_journal(parser, &message->number,
			   sizeof *message - offsetof(struct fc_message, number));
	}
}

/* The record named `position`, or NULL. Half the pool is never read again: a
 * mark names records that must stay until the extractor has seen it, one ring
 * of slots later. */
static inline struct fc_message *fc_message_at(const struct fc_flows *flows, uint64_t position)
{
	if (position == 0 || flows->header->messages_made - position > flows->mask / 2)
		return NULL;
	struct fc_message *message = &flows->messages[position & flows->mask];
	return message->position == position ? message : NULL;
}

static inline uint64_t fc_message_stop(const struct fc_message *message)
{
	return message->first_psn + message->packets;
}

/* Does `message` reach to or behind what the receiver of `flow` refused? */
static inline bool fc_stops_beyond_refusal(const struct fc_flow *flow,
					   const struct fc_message *message)
{
	return flow->refused_psn && fc_message_stop(message) > flow->refused_psn;
}

static inline uint64_t fc_unwrap(const struct fc_flow *flow, uint32_t psn)
{
	if (flow->next_psn == 0)
		return FC_PSN_ORIGIN + psn;
	return flow->next_psn +
	       (uint64_t)(int64_t)fc_psn_diff(psn, (uint32_t)flow->next_psn & 0xffffff);
}

static inline uint32_t fc_packets_of(uint32_t length_bytes, uint32_t pmtu_bytes)
{
	const uint32_t shift = (uint32_t)__builtin_ctz(pmtu_bytes);
	const uint64_t packets = ((uint64_t)length_bytes + pmtu_bytes - 1) >> shift;

	return packets ? (uint32_t)packets : 1;
}

/* PSNs the message that starts with this RETH packet spans. */
static inline uint32_t fc_packets_from_reth(const struct fc_packet *p)
{
	return p->opcode == FC_RC_WRITE_FIRST ? fc_packets_of(p->length_bytes, p->payload_bytes)
					      : 1;
}

static inline uint8_t fc_head_bytes(const struct fc_packet *p)
{
	return p->payload_bytes < 16 ? (uint8_t)p->payload_bytes : 16;
}

/* fc_flow.c */
uint64_t fc_key_hash(const struct fc_flow_key *key);
/* The first owner of the packet's key in its network, or NULL. */
struct fc_flow *fc_flow_find(struct fc_flows *flows, const struct fc_packet *p, uint64_t hash);
struct fc_flow *fc_flow_find_or_make(struct fc_arrival *a);
/* A record for the packet's key; NULL if the table is full. */
struct fc_flow *fc_flow_make(struct fc_arrival *a, uint32_t incarnation);
void fc_undo_begin(struct fc_parser *parser, uint64_t position);
void fc_undo_end(struct fc_flows *flows);
/* Takes back what a killed parser had not committed. -EINVAL if the journal is torn. */
int fc_undo_roll_back(struct fc_flows *flows, uint64_t parsed);

/* fc_holes.c: [start, stop) are PSNs of a->flow. */
bool fc_holes_missing(const struct fc_flow *flow, uint64_t psn);
uint64_t fc_holes_missing_in(const struct fc_flow *flow, uint64_t start, uint64_t stop);
/* Notes that [start, stop) was seen; false if all of it was before. */
bool fc_holes_see(struct fc_parser *parser, struct fc_flow *flow, uint64_t start, uint64_t stop);
/* What came of [start, stop) was somebody else's: all of it is missing again. */
void fc_holes_unsee(struct fc_parser *parser, struct fc_flow *flow, uint64_t start, uint64_t stop);

/* fc_jumps.c: of all records of the table; false: no memory. */
bool fc_jumps_open(struct fc_parser *parser);
void fc_jumps_close(struct fc_parser *parser);
/* Where to go on from `message`, behind `psn`, towards it: a position, or 0. */
uint64_t fc_jump_before(const struct fc_flows *flows, const struct fc_message *message,
			uint64_t psn);
/* The record named `position` stands behind `before` in its chain, or behind none that is kept. */
void fc_jump_set(struct fc_flows *flows, uint64_t position, const struct fc_message *before);
/* It stands in no chain any more. */
void fc_jump_forget(struct fc_flows *flows, const struct fc_message *message);

/* fc_laps.c: did all PSNs pass once before this write, which seems to follow `last`? */
bool fc_lap_on(struct fc_arrival *a, const struct fc_message *last);

/* fc_chain.c */
struct fc_neighbours fc_chain_find(const struct fc_flows *flows, const struct fc_flow *flow,
				   uint64_t psn);
/* Are keys of `flow` known, and `rkey` none of them? */
bool fc_chain_foreign_rkey(const struct fc_flows *flows, const struct fc_flow *flow, uint32_t rkey);
/* A new record of a->flow between its neighbours, not yet numbered or published. */
struct fc_message *fc_chain_insert(struct fc_arrival *a, const struct fc_neighbours *near,
				   uint64_t first_psn, uint32_t packets);
/* Numbers `message` and those behind it that can be numbered now. */
void fc_chain_number(struct fc_arrival *a, struct fc_message *message);

/* Takes `message` out of the chain of a->flow, whose PSNs are missing again: it was made up,
 * as far as can be told, and whoever goes on with it goes on in vain. */
void fc_chain_withdraw(struct fc_arrival *a, struct fc_message *message);
/* Takes `message` out of the chain of a->flow; its record stays, without packets. */
void fc_chain_remove(struct fc_arrival *a, struct fc_message *message);

/* fc_message.c: is the packet older than every record kept? */
bool fc_is_forgotten(const struct fc_arrival *a, const struct fc_neighbours *near);
/* Marks a packet that came before, and counts it. */
void fc_note_again(struct fc_arrival *a);
/* a->flow becomes the next owner's, its neighbours none. FC_WRITE, or why not. */
enum fc_verdict fc_begin_owner(struct fc_arrival *a, struct fc_neighbours *near);

/* Is a packet without RETH what message `m` has at this PSN? */
bool fc_fits_message(const struct fc_arrival *a, const struct fc_message *m);

/* fc_send.c: a SEND packet into its message. */
enum fc_verdict fc_place_send(struct fc_arrival *a);

/* fc_refuse.c: a NAK that puts the queue pair in error. */
enum fc_verdict fc_note_refusal(struct fc_arrival *a);

/* fc_rival.c: names in the mark the message that this write packet may be of, too. said: what
 * became of it. */
void fc_note_rival(struct fc_arrival *a, enum fc_verdict said);

/* fc_message.c: every RoCE packet that belongs to a flow; returns its verdict. */
enum fc_verdict fc_assemble(struct fc_arrival *a);

#endif
