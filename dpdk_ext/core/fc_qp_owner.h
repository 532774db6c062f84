/* Owners of a key: which of the flows of a key, in which network, a packet belongs to.
 * fc_qp_owner.c: owners; fc_tenant_network.c: networks. */
#ifndef FC_QP_OWNER_H
#define FC_QP_OWNER_H

#include "fc_flow_ops.h"

/* A sender retransmits what is not acknowledged within at most four times its timeout (IB
 * 9.7.6.1.3), of which NCCL's longest is 4.3 s. A message without packets for longer has ended,
 * and so has its sender. */
#define FC_RESTED_NS 20000000000ull
/* Packets far from everything in flight after which they are believed to be the owner's. One may
 * be forged; after a pause of the capture there are many. */
#define FC_FAR_PACKETS 16
/* Most packets by which a mirror reorders a packet or a copy of it within a connection. */
#define FC_COPY_PACKETS 64
/* Most owners of one key; more can only be forged. */
#define FC_OWNERS_MAX 4
/* Packets that an owner sends while the others of its key are silent: until it becomes the first
 * of them, until those that sent less are dropped, and until all others are dropped. */
#define FC_PROOF_PACKETS 256
#define FC_SILENT_PACKETS 4096
#define FC_ENDED_PACKETS (1u << 20)

/* The UDP source port belongs to the queue pair (it spreads pairs over paths), so another port is
 * another sender, unless the owner was seen to change its port. */
static inline bool fc_is_other_port(const struct fc_arrival *a)
{
	return FC_UNLIKELY(a->packet->udp_source_port != a->flow->udp_source_port) &&
	       !(a->flow->owner & FC_OWNER_PORTS);
}

/* The packet continues a message of this owner, or starts its next one with a key of its own: it
 * is no longer doubted. */
static inline void fc_trust_owner(struct fc_arrival *a)
{
	if (fc_is_other_port(a))
		a->flow->owner |= FC_OWNER_PORTS;
	if (FC_UNLIKELY(a->flow->owner & FC_OWNER_DOUBTED))
		a->flow->owner &= (uint8_t)~FC_OWNER_DOUBTED;
}

/* The owner's next PSN, by packets that can only be its own. */
static inline uint64_t fc_own_psn(const struct fc_flow *flow)
{
	return flow->proven_psn ? flow->proven_psn : flow->next_psn;
}

/* Whether it is far behind everything that its owner has in flight. */
static inline bool fc_is_far_behind(const struct fc_arrival *a)
{
	return a->psn + FC_PSN_FAR < fc_own_psn(a->flow);
}

/* Whether it is beyond everything that its owner has in flight. */
static inline bool fc_is_far_ahead(const struct fc_arrival *a)
{
	const struct fc_flow *flow = a->flow;

	return flow->next_psn && a->psn > fc_own_psn(flow) + FC_PSN_FAR &&
	       a->psn > flow->expected_psn + FC_PSN_FAR;
}

/* Whether no packet of its message came for longer than a sender waits. */
static inline bool fc_is_at_rest(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	return near->at && a->now_ns > near->at->last_ns + FC_RESTED_NS;
}

/* Whether this packet, which has no address, may belong to the queue pair's next owner. After a
 * sign of a new owner, which may be forged, packets without an address are placed only if they
 * continue a message in flight. */
static inline bool fc_is_doubtful(const struct fc_arrival *a, const struct fc_neighbours *near)
{
	const struct fc_flow *flow = a->flow;
	const bool goes_on = near->at && a->psn >= flow->next_psn;

	return ((flow->owner & FC_OWNER_DOUBTED && !goes_on) || a->owner_silent ||
		fc_is_other_port(a) || fc_is_far_behind(a) || fc_is_at_rest(a, near)) &&
	       flow->next_psn;
}

/* How well a packet fits an owner of its queue pair. */
enum fc_fit {
	FC_FITS_NOT,   /* this owner cannot have sent it */
	FC_FITS_LOOSE, /* neither contradicts nor supports it */
	FC_FITS_FRESH, /* starts the next message, with a new key */
	FC_FITS_AGAIN, /* repeats what this owner sent */
	FC_FITS_LATE,  /* of this owner's message or key, not next in order */
	FC_FITS_NEXT,  /* of this owner's message or key, and next in order */
};

/* fc_flow.c */
/* Adds an owner of the key to its list; NULL: the table is full. */
struct fc_flow *fc_flow_reincarnate(struct fc_arrival *a);
/* The list of owners of a key: the next one or NULL; remove one; move one to the front. `before`
 * is its predecessor in the list. */
struct fc_flow *fc_owner_after(const struct fc_flows *flows, const struct fc_flow *flow);
void fc_owner_drop(struct fc_parser *parser, struct fc_flow *before, struct fc_flow *dropped);
void fc_owner_first(struct fc_arrival *a, struct fc_flow *before, struct fc_flow *flow);
/* fc_tenant_network.c: lists of owners of one key, one per network; `head` is the first owner of
 * the first list. Returns the list of `network`, or NULL. */
struct fc_flow *fc_network_find(const struct fc_flows *flows, struct fc_flow *head,
				uint64_t network);
/* Whether the list that begins with `first` has writes in this network. */
bool fc_network_has(const struct fc_flow *first, uint64_t network);
/* The list for a packet from a network without a list; NULL: none, see a->outside. */
struct fc_flow *fc_network_choose(struct fc_arrival *a, struct fc_flow *head);
/* Records that the list of `first` has a write from the packet's network. */
void fc_network_note(struct fc_arrival *a, struct fc_flow *first);
/* Makes another owner the first of its list. */
void fc_network_first(struct fc_arrival *a, struct fc_flow *head, struct fc_flow *was,
		      struct fc_flow *is);

/* fc_qp_owner.c: whether the ICRC is right, checked even if it was not sampled. Required before a
 * packet changes the owner of a queue pair or the trust in its messages. */
bool fc_is_genuine(struct fc_arrival *a);
/* Whether a First or Only packet of a known message has the same content as before. */
bool fc_is_same_message(const struct fc_arrival *a, const struct fc_message *m);
/* Whether this owner has used the memory key before, or uses its first. */
bool fc_is_known_key(const struct fc_arrival *a);
/* The owner of a->flow cannot have sent this packet. Returns FC_ICRC_BAD or `verdict`. */
enum fc_verdict fc_doubt_owner(struct fc_arrival *a, enum fc_verdict verdict);
/* Whether this RETH packet shows that the queue pair has a new owner. */
bool fc_is_new_owner(const struct fc_arrival *a, const struct fc_neighbours *near);
/* The message with a new key that this RETH packet, with a known key, contradicts; or NULL. */
struct fc_message *fc_weaker_message(const struct fc_arrival *a, const struct fc_neighbours *near);
/* Counts packets far from everything in flight; true: there are enough for the owner to continue
 * there. */
bool fc_far_packets_agree(struct fc_arrival *a);
/* Trust in a message that begins with this RETH packet. */
enum fc_message_standing fc_standing_of(const struct fc_arrival *a,
					const struct fc_neighbours *near);
/* Whether it contradicts a message whose length was only inferred. */
bool fc_contradicts_inferred(const struct fc_arrival *a, const struct fc_neighbours *near);
/* Sets a->flow to that one of several owners that this write or SEND packet belongs to. */
void fc_find_owner(struct fc_arrival *a);
/* Records the sender and which owner is first. message: the packet's message, or NULL. */
void fc_note_owner(struct fc_arrival *a, const struct fc_message *message);

/* fc_send.c */
enum fc_fit fc_send_fit(const struct fc_arrival *a, const struct fc_neighbours *near);

#endif
