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
/* A sender repeats what was not acknowledged after at most four times the timeout it
 * was told (IB 9.7.6.1.3), NCCL's longest being 4.3 s: a message at rest for longer
 * has ended, and so has whoever sent it. */
#define FC_RESTED_NS 20000000000ull
/* Packets that come far from all that an owner has under way, until they are its own. One is
 * anybody's; a capture that was blind comes back with many. */
#define FC_LEAP_PACKETS 16
/* Owners of one key that packets are told apart for: more come only from who makes them up. */
#define FC_OWNERS_MAX 4
/* Packets that an owner sends while the others of its key are silent, until it is the first of
 * them; until those that sent less are forgotten; and until all others are. */
#define FC_PROOF_PACKETS 256
#define FC_SILENT_PACKETS 4096
#define FC_ENDED_PACKETS (1u << 20)
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

/* Flows by the pair of hosts they lead between: for a NAK, which names no flow. A record
 * keeps its addresses, so this grows with the table, whenever somebody asks. */
struct fc_host_pairs {
	uint64_t flows;                /* of the table, that are in here */
	uint32_t newest[FC_FLOWS_MAX]; /* by hash: index + 1 of the newest flow, 0: none */
	uint32_t older[FC_FLOWS_MAX];  /* by flow: of the next older one of its hash */
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

/* The UDP port is of a queue pair (it spreads pairs over paths), so another port is
 * another sender; unless this one was seen to change it. */
static inline bool fc_is_other_port(const struct fc_arrival *a)
{
	return FC_UNLIKELY(a->packet->udp_source_port != a->flow->udp_source_port) &&
	       !(a->flow->owner & FC_OWNER_PORTS);
}

/* A packet came that goes on with a message of this owner, or begins its next one with a
 * key of its own: doubts end. */
static inline void fc_trust_owner(struct fc_arrival *a)
{
	if (fc_is_other_port(a))
		a->flow->owner |= FC_OWNER_PORTS;
	if (FC_UNLIKELY(a->flow->owner & FC_OWNER_DOUBTED))
		a->flow->owner &= (uint8_t)~FC_OWNER_DOUBTED;
}

/* Where its owner is, as far as nobody else can say so. */
static inline uint64_t fc_own_psn(const struct fc_flow *flow)
{
	return flow->proven_psn ? flow->proven_psn : flow->next_psn;
}

/* Far behind all that its owner has under way? */
static inline bool fc_is_far_behind(const struct fc_arrival *a)
{
	return a->psn + FC_PSN_FAR < fc_own_psn(a->flow);
}

/* Beyond all that its owner has under way? */
static inline bool fc_is_far_ahead(const struct fc_arrival *a)
{
	const struct fc_flow *flow = a->flow;

	return flow->next_psn && a->psn > fc_own_psn(flow) + FC_PSN_FAR &&
	       a->psn > flow->expected_psn + FC_PSN_FAR;
}

/* Nothing of its message came for longer than a sender waits? */
static inline bool fc_is_at_rest(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	return near->at && a->now_ns > near->at->last_ns + FC_RESTED_NS;
}

/* May this packet, which has no address, be of the queue pair's next owner? After a
 * sign of somebody new, nothing without an address is placed but what goes on with a
 * message under way: a sign may be anybody's. */
static inline bool fc_is_doubtful(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	const struct fc_flow *flow = a->flow;
	const bool goes_on = near->at && a->psn >= flow->next_psn;

	return ((flow->owner & FC_OWNER_DOUBTED && !goes_on) || a->contested ||
		fc_is_other_port(a) || fc_is_far_behind(a) || fc_is_at_rest(a, near)) &&
	       flow->next_psn;
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

/* How well a packet fits an owner of its queue pair. */
enum fc_fit {
	FC_FITS_NOT,   /* this owner cannot have sent it */
	FC_FITS_LOOSE, /* nothing speaks against it, nor for it */
	FC_FITS_FRESH, /* begins the next message, with a key that is new */
	FC_FITS_AGAIN, /* repeats what this owner sent */
	FC_FITS_LATE,  /* of a message or with a key of this owner, not next in order */
	FC_FITS_NEXT,  /* of a message or with a key of this owner, and next in order */
};

/* fc_flow.c */
uint64_t fc_key_hash(const struct fc_flow_key *key);
/* The first owner of the packet's key in its network, or NULL. */
struct fc_flow *fc_flow_find(struct fc_flows *flows, const struct fc_packet *p, uint64_t hash);
struct fc_flow *fc_flow_find_or_make(struct fc_arrival *a);
/* A record for the packet's key; NULL if the table is full. */
struct fc_flow *fc_flow_make(struct fc_arrival *a, uint32_t incarnation);
/* Puts one more owner of the key into its list; NULL if the table is full. */
struct fc_flow *fc_flow_reincarnate(struct fc_arrival *a);
/* The owners of a key: the next one in the list, or NULL; takes one out of it, or puts it
 * at its beginning. `before` is the one before it there. */
struct fc_flow *fc_owner_after(const struct fc_flows *flows, const struct fc_flow *flow);
void fc_owner_drop(struct fc_parser *parser, struct fc_flow *before, struct fc_flow *dropped);
void fc_owner_first(struct fc_arrival *a, struct fc_flow *before, struct fc_flow *flow);
/* fc_network.c: lists of owners of one key, one for each network; `head` is the first owner of
 * the first. The list of `network`, or NULL. */
struct fc_flow *fc_network_find(const struct fc_flows *flows, struct fc_flow *head,
				uint64_t network);
/* Does the list that begins with `first` write in that network? */
bool fc_network_has(const struct fc_flow *first, uint64_t network);
/* The list a packet is for whose network none has; NULL: it is for none, see a->outside. */
struct fc_flow *fc_network_choose(struct fc_arrival *a, struct fc_flow *head);
/* The list of `first` has a write from the packet's network. */
void fc_network_note(struct fc_arrival *a, struct fc_flow *first);
/* Another owner becomes the first of its list. */
void fc_network_first(struct fc_arrival *a, struct fc_flow *head, struct fc_flow *was,
		      struct fc_flow *is);

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

/* fc_owner.c: is the ICRC right, whatever is sampled? What changes who owns a queue
 * pair or what its messages are worth asks first. */
bool fc_is_genuine(struct fc_arrival *a);
/* The First or Only packet of a message seen before says what that one said. */
bool fc_is_same_message(const struct fc_arrival *a, const struct fc_message *m);
/* Is its memory key one that this owner used before, or the first that it uses? */
bool fc_is_known_key(const struct fc_arrival *a);
/* A packet came that the owner of a->flow cannot have sent: FC_ICRC_BAD or `verdict`. */
enum fc_verdict fc_doubt_owner(struct fc_arrival *a, enum fc_verdict verdict);
/* Does this RETH packet say that the queue pair belongs to somebody new? */
bool fc_is_new_owner(const struct fc_arrival *a, const struct fc_neighbours *near);
/* The message of a key new to its owner that this RETH packet, of a key known to it,
 * contradicts; or NULL. */
struct fc_message *fc_weak_rival(const struct fc_arrival *a, const struct fc_neighbours *near);
/* Notes a packet far from all that its owner has under way; true: so many came there that
 * its owner goes on with it. */
bool fc_leaps(struct fc_arrival *a);
/* What a message that begins with this RETH packet is to be believed. */
enum fc_message_standing fc_standing_of(const struct fc_arrival *a,
					const struct fc_neighbours *near);
/* Does it contradict a message whose length was only inferred? */
bool fc_contradicts_inferred(const struct fc_arrival *a, const struct fc_neighbours *near);
/* a->flow becomes the one of several owners that this write or SEND packet is of. */
void fc_find_owner(struct fc_arrival *a);
/* Notes who sent it, and who is first of them. message: that it is of, or NULL. */
void fc_note_owner(struct fc_arrival *a, const struct fc_message *message);

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
enum fc_fit fc_send_fit(const struct fc_arrival *a, const struct fc_neighbours *near);

/* fc_refuse.c: a NAK that puts the queue pair in error. */
enum fc_verdict fc_note_refusal(struct fc_arrival *a);

/* fc_rival.c: names in the mark the message that this write packet may be of, too. said: what
 * became of it. */
void fc_note_rival(struct fc_arrival *a, enum fc_verdict said);

/* fc_message.c: every RoCE packet that belongs to a flow; returns its verdict. */
enum fc_verdict fc_assemble(struct fc_arrival *a);

#endif
