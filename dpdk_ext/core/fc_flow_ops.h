/* Internal interface of the parser: its state, the undo journal, functions shared by its files.
 * fc_flow.c                 flow table
 * fc_tenant_network.c       networks of tenants with equal addresses
 * fc_missing_psns.c         missing PSNs
 * fc_message_list.c         messages in PSN order
 * fc_message_pool.c         records that are reused, and those that are held
 * fc_jump_pointers.c        jump pointers through the messages
 * fc_psn_wrap.c             pauses in which all PSNs may have passed
 * fc_qp_owner.c             successive owners of a queue pair
 * fc_message.c              packets into messages
 * fc_next_packet.h          the next packet of a message, which nearly every one is
 * fc_known_headers.c        headers that were decoded before
 * fc_alternative_message.c  other messages that a packet may belong to
 * fc_send.c                 packets into SENDs
 * fc_nak.c                  requests that a receiver refused
 * fc_parser_loop.c          the parser's loop */
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
/* More packets than a NIC has in flight or a switch can reorder: at a larger distance a PSN says
 * nothing about its neighbours. */
#define FC_PSN_FAR 65536
/* PSNs repeat after this many packets. */
#define FC_PSN_COUNT (1ull << 24)
/* Nanoseconds; on any port, all PSNs take longer. */
#define FC_PAUSE_NS 20000000ull
#define FC_INDEX_ENTRIES (2u * FC_FLOWS_MAX)
#define FC_UNDO_BYTES (1u << 20)
/* More bytes than one packet can add to the journal: two flows, and a message with FC_RENUMBER_MAX
 * after it and FC_HELD_MAX that are held, or FC_REFUSE_MAX that are refused at once. */
#define FC_UNDO_PACKET_BYTES 131072
#define FC_REFUSE_MAX 1024
#define FC_RENUMBER_MAX 64
/* Most messages that are held. */
#define FC_HELD_MAX 1024
/* Most messages that give way to one message. */
#define FC_WITHDRAWN_MAX 32
/* Slots whose addresses and packets are kept: more than the parser looks ahead. */
#define FC_LINED_SLOTS 64

/* Whether it is a write or SEND packet, which is part of a message. */
static inline bool fc_is_of_message(const struct fc_packet *p)
{
	return p->verdict == FC_WRITE || p->verdict == FC_SEND;
}

/* Flows whose records stay in the L1 cache by themselves: for fewer, to work ahead only costs. */
#define FC_FEW_FLOWS 64

struct fc_known_headers;

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
	/* A part of a record that was journalled in this span has its epoch. */
	uint32_t epoch;
	struct fc_message_epochs *message_epochs;
	struct fc_jump_pointer *jumps; /* by record; also in `flows` */
	struct fc_flow_epochs flow_epochs[FC_FLOWS_MAX];
	struct fc_host_pairs host_pairs;
	/* By position, each up to where a stage of the loop is. */
	const uint8_t *frames[FC_LINED_SLOTS];    /* lined_up */
	struct fc_packet packets[FC_LINED_SLOTS]; /* decoded */
	uint64_t hashes[FC_LINED_SLOTS];
	struct fc_flow *found[FC_LINED_SLOTS]; /* looked_up; flow as it was then, or NULL */
	uint64_t lined_up, decoded, peeked, looked_up;
	uint64_t left_in_page;
	const uint8_t *next_frame;
	bool many_flows;                /* more than FC_FEW_FLOWS */
	struct fc_known_headers *known; /* of few flows */
	/* Every packet takes the general path: for tests that compare both. */
	bool general;
};

/* A packet while it is assigned to its flow. */
struct fc_arrival {
	struct fc_parser *parser;
	const struct fc_packet *packet;
	const uint8_t *frame;
	struct fc_flow *flow;
	struct fc_flow *list; /* first owner of the key in the packet's network */
	struct fc_mark *mark;
	uint64_t hash, now_ns;
	uint64_t psn;       /* unwrapped */
	bool icrc_ok;       /* the ICRC is right, or was not checked */
	bool continues_far; /* its owner continues far from where it was */
	bool owner_silent;  /* its owner is silent while another owner of the key sends */
	uint32_t standing;  /* enum fc_message_standing of the message that it begins */
	/* Not FC_WRITE: verdict on a packet from a network in which its queue pair is not
	 * followed. */
	enum fc_verdict outside;
};

/* Position of a PSN among the messages of its flow. */
struct fc_neighbours {
	struct fc_message *at;     /* message that contains the PSN */
	struct fc_message *before; /* nearest message that ends at or before it */
	struct fc_message *after;  /* nearest message that starts after it */
	bool forgotten;            /* older records are gone or too far back */
};

/* Follows the old bytes of each entry, so that the journal can be read from its end. */
struct fc_undo_tail {
	uint64_t offset; /* of the record, in the file */
	uint64_t bytes;
};

/* Copies `bytes` at `record` to the journal; from now on they are restored after a kill. */
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
	/* A kill preserves program order, so only the compiler must not reorder. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	flows->header->undo_used_bytes += padded + sizeof tail;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* The parts of a record are journalled separately, once per span each, since what every packet
 * changes is small. A part is touched before it is changed. */
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
		 offsetof(struct fc_flow, last_message) - offsetof(struct fc_flow, last_ns));
}

/* last_message to holes_used */
static inline void fc_touch_flow_rest(struct fc_parser *parser, struct fc_flow *flow)
{
	fc_touch(parser, &parser->flow_epochs[flow - parser->flows->flows].rest,
		 &flow->last_message,
		 offsetof(struct fc_flow, holes) - offsetof(struct fc_flow, last_message));
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

/* The whole record. */
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

/* Most records of a pool that are held. */
static inline uint64_t fc_held_max(const struct fc_flows *flows)
{
	const uint64_t share = (flows->mask + 1) / 8;

	return share < FC_HELD_MAX ? share : FC_HELD_MAX;
}

/* Up to this distance from the newest position a record is found without being held. A mark names
 * records that must stay until the extractor has read it, one ring of slots later: the pool has
 * twice as many records as the ring has slots, and leaves out the places of those that are held. */
static inline uint64_t fc_record_reach(const struct fc_flows *flows)
{
	return flows->mask / 2 - fc_held_max(flows);
}

/* The record at `position`, or NULL. */
static inline struct fc_message *fc_message_at(const struct fc_flows *flows, uint64_t position)
{
	struct fc_message *message = &flows->messages[position & flows->mask];
	const bool old = flows->header->messages_made - position > fc_record_reach(flows);

	if (position == 0 || message->position != position || (FC_UNLIKELY(old) && !message->held))
		return NULL;
	return message;
}

static inline uint64_t fc_message_stop(const struct fc_message *message)
{
	return message->first_psn + message->packets;
}

/* Whether `message` extends to or beyond what the receiver of `flow` refused. */
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

/* Number of PSNs of the message that starts with this RETH packet. */
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
/* A new record for the packet's key; NULL: the table is full. */
struct fc_flow *fc_flow_make(struct fc_arrival *a, uint32_t incarnation);
void fc_undo_begin(struct fc_parser *parser, uint64_t position);
void fc_undo_end(struct fc_flows *flows);
/* Rolls back what a killed parser had not committed. Returns -EINVAL if the journal is torn. */
int fc_undo_roll_back(struct fc_flows *flows, uint64_t parsed);

/* fc_missing_psns.c: [start, stop) are PSNs of a->flow. */
bool fc_psn_is_missing(const struct fc_flow *flow, uint64_t psn);
uint64_t fc_psns_missing_in(const struct fc_flow *flow, uint64_t start, uint64_t stop);
/* Marks [start, stop) as seen; returns false if all of it was seen before. */
bool fc_psns_see(struct fc_parser *parser, struct fc_flow *flow, uint64_t start, uint64_t stop);
/* Marks [start, stop) as missing again: its packets were another owner's. */
void fc_psns_unsee(struct fc_parser *parser, struct fc_flow *flow, uint64_t start, uint64_t stop);

/* fc_jump_pointers.c: allocates the jump pointers of all records; false: no memory. */
bool fc_jumps_open(struct fc_parser *parser);
void fc_jumps_close(struct fc_parser *parser);
/* Position of a record between `message` and `psn` from which to continue the search; 0: none. */
uint64_t fc_jump_before(const struct fc_flows *flows, const struct fc_message *message,
			uint64_t psn);
/* Links the record at `position` after `before` in its list; NULL: after no record that is kept.
 */
void fc_jump_set(struct fc_flows *flows, uint64_t position, const struct fc_message *before);
/* Removes a record's jump pointer, since it left its list. */
void fc_jump_forget(struct fc_flows *flows, const struct fc_message *message);

/* fc_psn_wrap.c: whether all PSNs passed once before this write, which seems to follow `last`. */
bool fc_psns_wrapped(struct fc_arrival *a, const struct fc_message *last);

/* fc_message_pool.c: the position of the next new record. Holds records that will be out of reach
 * and whose flows need them. */
uint64_t fc_message_pool_next(struct fc_parser *parser);
/* A mark names this record, which is held. */
void fc_message_pool_marked(struct fc_parser *parser, struct fc_message *message);

/* fc_message_list.c */
struct fc_neighbours fc_message_list_find(const struct fc_flows *flows, const struct fc_flow *flow,
					  uint64_t psn);
/* Whether keys of `flow` are known and `rkey` is not one of them. */
bool fc_message_list_foreign_rkey(const struct fc_flows *flows, const struct fc_flow *flow,
				  uint32_t rkey);
/* Adds a record to a->flow between its neighbours; it is not numbered or published yet. */
struct fc_message *fc_message_list_insert(struct fc_arrival *a, const struct fc_neighbours *near,
					  uint64_t first_psn, uint32_t packets);
/* Numbers `message`, and messages after it that can be numbered now. */
void fc_message_list_number(struct fc_arrival *a, struct fc_message *message);

/* Removes `message`, which is probably forged, from the list of a->flow; its PSNs are missing
 * again. */
void fc_message_list_withdraw(struct fc_arrival *a, struct fc_message *message);
/* Removes `message` from the list of a->flow; its record stays, without packets. */
void fc_message_list_remove(struct fc_arrival *a, struct fc_message *message);

/* fc_message.c: whether the packet is older than all records that are kept. */
bool fc_is_forgotten(const struct fc_arrival *a, const struct fc_neighbours *near);
/* Marks and counts a packet that was seen before. */
void fc_note_duplicate(struct fc_arrival *a);
/* Makes a->flow that of a new owner and empties `near`. Returns FC_WRITE, or why not. */
enum fc_verdict fc_begin_owner(struct fc_arrival *a, struct fc_neighbours *near);

/* Whether a packet without RETH is what message `m` has at this PSN. */
bool fc_fits_message(const struct fc_arrival *a, const struct fc_message *m);

/* fc_send.c: assigns a SEND packet to its message. */
enum fc_verdict fc_place_send(struct fc_arrival *a);

/* fc_nak.c: handles a NAK that puts the queue pair in error. */
enum fc_verdict fc_note_refusal(struct fc_arrival *a);

/* fc_alternative_message.c: writes to the mark another message that this write packet may belong
 * to. said: the packet's verdict. */
void fc_note_alternative(struct fc_arrival *a, enum fc_verdict said);

/* fc_message.c: assigns any RoCE packet to its flow; returns its verdict. */
enum fc_verdict fc_assemble(struct fc_arrival *a);

#endif
