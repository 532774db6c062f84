/* Flow table and message pool: the parser's knowledge of the transport, in a shared-memory file
 * beside the ring. Written by that ring's parser only, read by any process. Read by the compiler
 * and, without its # lines, by cffi.
 *
 * A flow is one direction of one queue pair as one ring sees it, keyed by (source, destination,
 * destination QP, partition) and an incarnation: a key that returns with other memory keys,
 * addresses or first bytes is a new flow, of another owner of the queue pair.
 *
 * Tenants of overlay networks and VLANs may use the same addresses and queue pairs. The network
 * number is not part of the key, since routers, access ports, tunnel ends and mirror sessions
 * change it on the path of a packet. So each key has a list of owners for each network
 * (`next_network`). A network belongs to an existing list if its first write repeats or continues
 * what an owner in that list sent (fc_tenant_network.c).
 *
 * A few packets prove nothing, as they may be forged: all flows of a key coexist (`next_owner`),
 * and each packet goes to the flow that it fits. A flow becomes the first of them only if it sends
 * while the others are silent.
 *
 * PSNs are unwrapped: FC_PSN_ORIGIN + the 24-bit PSN for the first packet of a flow, then
 * continued by serial-number arithmetic, so that differences never wrap.
 *
 * The pool has one record per RDMA write and SEND in order of discovery. A record's `position`
 * counts from 1, identifies it in marks, and is written last; it is stored at index position &
 * (messages - 1). Records are reused in the order in which they were made, except those that are
 * held (fc_message_pool.c): their index is left out, and so is its position. */
#ifndef FC_FLOW_H
#define FC_FLOW_H

#include <stdint.h>

enum {
	FC_FLOWS_MAX = 16384,
	FC_FLOW_HOLES = 16,
	FC_FLOW_KEYS = 4,     /* NCCL has a buffer for each of its three protocols */
	FC_FLOW_NETWORKS = 4, /* networks in which one flow is seen, on several links and mirrors */
	/* Flows that never wrote or sent: ACKs and READs alone shall not fill the table. */
	FC_SILENT_FLOWS_MAX = FC_FLOWS_MAX / 4,
};
/* FC_PSN_ORIGIN = 2^32 leaves room for packets before the first one that was captured. */

struct fc_flow_key {
	uint8_t source[16]; /* IPv6, or IPv4 as ::ffff:a.b.c.d */
	uint8_t destination[16];
	uint32_t dest_qp;
	uint32_t partition; /* P_Key without its membership bit */
};

struct fc_psn_range {
	uint64_t start, stop; /* unwrapped, half-open */
};

/* Fields in order of how often they change: set once; by every packet; by every message or fault;
 * by gaps. */
struct fc_flow {
	/* Identity of the flow: the first cache line, which is never rolled back. */
	struct fc_flow_key key;
	uint32_t incarnation; /* 0 for the first owner of the key */
	uint16_t udp_source_port;
	/* Lists of one key, linked by their first owners: index + 1 of the next one, 0 at the end.
	 */
	uint16_t next_network;
	uint64_t first_ns;
	/* First owner of a list only: network in which its writes were first seen; 0: none yet. */
	uint64_t network;

	uint64_t last_ns;
	uint64_t next_psn; /* unwrapped; one past the highest request PSN */
	/* As next_psn, but only from packets that certainly belong to this owner: no SEND, no
	 * READ, no new memory key. The others can move next_psn only a limited distance beyond it.
	 * 0: none yet. */
	uint64_t proven_psn;
	uint64_t write_packets, payload_bytes;
	uint32_t pmtu_bytes; /* 0 until a First or Middle packet was seen */
	uint8_t has_writes;  /* an RDMA write packet was seen */
	uint8_t has_immediates;
	uint8_t has_sends; /* a SEND packet was seen */
	uint8_t owner;     /* enum fc_flow_owner */

	/* The rest of this cache line is looked at with every packet. */
	uint64_t last_message; /* pool position of the message with the highest PSN; 0: none */
	/* Packets far from everything in flight; reset by a packet that is not far. */
	uint64_t far_packets;

	uint64_t first_psn;    /* unwrapped PSN of the lowest write packet seen */
	uint64_t expected_psn; /* one past the end of the furthest known message */
	/* For a message that would start at expected_psn: its number (UINT64_MAX: unknown), and
	 * whether that is a count. They outlive the records they come from. */
	uint64_t next_number, next_counted;
	/* Of the message before it: its run, and its position in the run plus 1; 0: none. */
	uint64_t run_psn, run_next;
	uint64_t messages;
	uint64_t duplicate_packets, icrc_bad_frames, ack_packets, nak_packets;
	uint64_t lost_holes;   /* missing packets whose ranges no longer fit below */
	uint64_t last_ack_psn; /* 24 bit, as in the BTH of the last ACK of this flow */
	uint64_t last_ack_msn;
	/* 1: another owner of the key has sent a complete message since this one's last packet. 0
	 * again when this one sends. */
	uint8_t retired;
	uint8_t spare;
	/* Number of pauses in which all PSNs may have passed once, and nothing shows whether they
	 * did. */
	uint16_t unproven_pauses;
	/* Owners of one key: index + 1 of the next one in the list; 0 at its end. */
	uint32_t next_owner;
	/* Packets since another owner of the key last sent; while there are several owners. */
	uint64_t unbroken;
	uint64_t owners_made; /* owners of this key so far; in the first owner of the first list */
	/* Unwrapped; 0: none. The receiver refused the request with this PSN and everything after
	 * it: a queue pair in error drops requests (IB 9.9.3). */
	uint64_t refused_psn;
	uint64_t refused_next; /* next_psn at the time of the refusal */
	uint64_t far_psn;      /* 24-bit PSN of the first of far_packets */
	/* The last memory keys, each at its number modulo FC_FLOW_KEYS; they outlive the records
	 * they come from. */
	uint32_t rkeys[FC_FLOW_KEYS];
	uint64_t rkeys_ever;
	uint64_t holes_used;
	struct fc_psn_range holes[FC_FLOW_HOLES];     /* missing PSNs, ascending */
	uint64_t more_networks[FC_FLOW_NETWORKS - 1]; /* first owner only */
	uint8_t spare_lines[40];
};

/* A network: its kind, the innermost VLAN, and the number. 0 means no network. The encapsulation
 * of a mirror session does not count. */
enum fc_network {
	FC_NETWORK_SEEN = 1, /* set for every frame, even untagged */
	FC_NETWORK_VXLAN = 2,
	FC_NETWORK_NVGRE = 4,
	FC_NETWORK_KIND_SHIFT = 48,
	FC_NETWORK_VLAN_SHIFT = 32,
};

enum fc_flow_owner {
	FC_OWNER_DOUBTED = 1, /* a packet came that this owner cannot have sent */
	FC_OWNER_PORTS = 2,   /* sends from several UDP ports */
	FC_OWNER_SEVERAL = 4, /* its key has other owners as well */
	FC_OWNER_SILENT = 8,  /* no write or SEND packet seen yet */
};

/* Kind of message. Only writes have numbers, keys and addresses. */
enum fc_message_kind {
	FC_KIND_WRITE = 0,
	/* From First on, as far as nothing is missing: packets and length_bytes grow until
	 * FC_MESSAGE_LAST; only then packets_seen, which is 0 before, equals packets. */
	FC_KIND_SEND = 1,
	/* A run of SEND packets whose First is not adjacent yet. Their marks name no message,
	 * since their offset in it is unknown. */
	FC_KIND_SEND_PART = 2,
};

enum fc_message_flags {
	FC_MESSAGE_RETH = 1,       /* address, key and length come from a RETH */
	FC_MESSAGE_IMMEDIATE = 2,  /* ended with immediate */
	FC_MESSAGE_LAST = 4,       /* last packet seen */
	FC_MESSAGE_INFERRED = 8,   /* start lost; length from the immediate */
	FC_MESSAGE_LINE_FLAG = 16, /* line_flag is valid */
	FC_MESSAGE_COUNTED = 32,   /* number is an uninterrupted count from the flow's PSN 0 */
	FC_MESSAGE_CLOSING = 64,   /* empty, to address and key 0: closes the write before it */
	FC_MESSAGE_REFUSED = 128,  /* never reached memory; packets_seen stays 0 */
};

/* How far a message is trusted, by its memory key. */
enum fc_message_standing {
	FC_STANDING_KNOWN = 0, /* the owner has used this key before, or it is its first */
	/* New key, at the expected position in the stream. Trusted, but gives way to a known key.
	 */
	FC_STANDING_FRESH = 1,
	/* New key out of order, or a known key used its PSNs: not placed by a plan. */
	FC_STANDING_UNPROVEN = 2,
};

/* A message that is not complete while others' messages use up the pool (fc_message_pool.c). */
enum fc_message_held {
	FC_HELD_NOT = 0,
	FC_HELD = 1,
	FC_HELD_MARKED = 2, /* a mark names it since its place in the pool was last due */
};

/* The first cache line has all that later packets need, at its end what they change. */
struct fc_message {
	uint64_t position;  /* commit word: its own pool position, written last */
	uint64_t previous;  /* pool position of the previous message in PSN order, 0: unknown */
	uint64_t first_psn; /* unwrapped */
	uint32_t packets;   /* number of PSNs */
	uint32_t flow;
	uint32_t length_bytes; /* DMA length of the RETH; of a SEND, bytes of its packets */
	uint32_t pmtu_bytes;

	uint64_t last_ns;
	uint32_t packets_seen; /* distinct packets so far; == packets: complete */
	uint32_t immediate;    /* the four bytes as a big-endian word */
	uint32_t line_flag;    /* words 1 and 3 of the first 16 payload bytes, if equal */
	uint8_t flags;         /* enum fc_message_flags */
	uint8_t opcode;        /* of its first packet that was seen */
	uint8_t standing : 4;  /* enum fc_message_standing */
	uint8_t held : 4;      /* enum fc_message_held */
	uint8_t kind;          /* enum fc_message_kind */

	uint64_t number; /* message number in the flow from 0; UINT64_MAX: unknown */
	uint64_t va;     /* RETH virtual address */
	uint64_t first_ns;
	uint32_t rkey;
	uint32_t head_bytes; /* valid bytes of head */
	uint8_t head[16];    /* first payload bytes: distinguish incarnations */
	/* The uninterrupted run of messages that it belongs to, by the first PSN of the run, and
	 * its position in it from 0. Used where the flow's own start was not captured. */
	uint64_t run_psn, nth;
};

struct fc_flows_header {
	uint8_t magic[8]; /* "FCFLOWS\0" */
	uint32_t layout_version;
	uint32_t flows_max;
	uint64_t messages; /* pool records, a power of two, at least twice the ring's slots */
	uint64_t file_bytes;
	uint64_t flows_offset, index_offset, messages_offset, undo_offset, undo_bytes;
	uint8_t pad_identity[48];
	/* Published by release and never decreased: readers keep what they read of a flow. A
	 * restarted parser creates the same flows from the same packets again. */
	uint64_t flows_used;
	uint64_t flows_made;    /* flows that the parser has created; at most flows_used */
	uint64_t messages_made; /* pool position of the newest message */
	uint64_t silent_flows;  /* those of flows_made with FC_OWNER_SILENT */
	uint64_t held_messages; /* records that are held */
	uint8_t pad_used[88];
	/* Undo journal: old bytes of each record before its first change in a span. If
	 * undo_base_position == ring.parsed after a kill, the changes are rolled back. */
	uint64_t undo_base_position;
	uint64_t undo_used_bytes;
	uint8_t pad_undo[112];
};

#endif
