/* Whose a packet is: the owners of one key beside each other, in each network that it is in use
 * in, and what speaks for one of them. fc_owner.c: owners; fc_network.c: networks. */
#ifndef FC_OWNERS_H
#define FC_OWNERS_H

#include "fc_flow_ops.h"

/* A sender repeats what was not acknowledged after at most four times the timeout it
 * was told (IB 9.7.6.1.3), NCCL's longest being 4.3 s: a message at rest for longer
 * has ended, and so has whoever sent it. */
#define FC_RESTED_NS 20000000000ull
/* Packets that come far from all that an owner has under way, until they are its own. One is
 * anybody's; a capture that was blind comes back with many. */
#define FC_LEAP_PACKETS 16
/* Packets of a connection that a mirror lets pass one of before at most, or its copy. */
#define FC_COPY_PACKETS 64
/* Owners of one key that packets are told apart for: more come only from who makes them up. */
#define FC_OWNERS_MAX 4
/* Packets that an owner sends while the others of its key are silent, until it is the first of
 * them; until those that sent less are forgotten; and until all others are. */
#define FC_PROOF_PACKETS 256
#define FC_SILENT_PACKETS 4096
#define FC_ENDED_PACKETS (1u << 20)

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

/* fc_send.c */
enum fc_fit fc_send_fit(const struct fc_arrival *a, const struct fc_neighbours *near);

#endif
