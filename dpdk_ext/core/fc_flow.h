/* Flow table and message pool: what the parser knows of the transport. In a
 * shared-memory file beside the ring, written by that ring's parser alone, read
 * by anyone. Read by the compiler and, without its # lines, by cffi.
 *
 * A flow is one direction of one queue pair as one ring sees it, keyed by
 * (source, destination, destination QP, partition) and an incarnation: a key that comes
 * back with other memory keys, addresses or first bytes is a new flow.
 *
 * Tenants of overlay networks and VLANs may have the same addresses and queue pairs. A
 * network's number is no part of the key: it belongs to a link, which routers, access ports,
 * tunnels' ends and mirror sessions change on the way of one and the same packet. So each key
 * has a list of owners for every network (`next_network`), and a network whose first write
 * repeats, or goes on with, what another one's owner sent is that one's (fc_network.c).
 *
 * One packet, or a few, prove nothing: the flows of one key stand beside each other
 * (`next_owner`), and each packet goes to the one that it fits. Only a flow that sends on
 * while the others are silent becomes the first of them.
 *
 * PSNs are unwrapped: FC_PSN_ORIGIN + the 24-bit PSN for the first packet of a
 * flow, continued by serial arithmetic, so that they only grow in step with the
 * sender and differences need no wrap.
 *
 * The pool holds one record per RDMA write and SEND in order of discovery. A record's
 * `position` counts from 1, is its name in marks, and is written last; the slot
 * it lies in is position & (messages - 1). */
#ifndef FC_FLOW_H
#define FC_FLOW_H

#include <stdint.h>

enum {
	FC_FLOWS_MAX = 8192,
	FC_FLOW_HOLES = 16,
	FC_FLOW_KEYS = 4,     /* of the three protocols of NCCL each has a buffer */
	FC_FLOW_NETWORKS = 4, /* one and the same flow, as it passes several links and mirrors */
	/* Flows that never wrote or sent: what only answers or reads is not to fill the table. */
	FC_SILENT_FLOWS_MAX = FC_FLOWS_MAX / 4,
};
/* FC_PSN_ORIGIN = 2^32: room to learn of earlier packets of the first message. */

struct fc_flow_key {
	uint8_t source[16]; /* IPv6, or IPv4 as ::ffff:a.b.c.d */
	uint8_t destination[16];
	uint32_t dest_qp;
	uint32_t
		partition; /* of the P_Key, whose upper bit says no more than who is a full member */
};

struct fc_psn_range {
	uint64_t start, stop; /* unwrapped, half open */
};

/* In the order of how often they change: set once, by every packet, by every
 * message or by what goes wrong, by holes. */
struct fc_flow {
	/* Whose it is: the first line, which stays whatever is taken back. */
	struct fc_flow_key key;
	uint32_t incarnation; /* 0 for the first owner of the key */
	uint16_t udp_source_port;
	/* Lists of one key, by the first owner of each: index + 1 of the next one, 0 at the end. */
	uint16_t next_network;
	uint64_t first_ns;
	/* Of the list's first owner: where its writes were first seen; 0: nowhere yet. */
	uint64_t network;

	uint64_t last_ns;
	uint64_t next_psn; /* unwrapped; one past the highest request seen */
	/* The same of what is its own for sure: no SEND, no request, no key never used before, for
	 * these are anybody's and move next_psn only so far beyond it. 0: none yet. */
	uint64_t proven_psn;
	uint64_t write_packets, payload_bytes;
	uint32_t pmtu_bytes; /* 0 until a First or Middle packet was seen */
	uint8_t has_writes;  /* saw an RDMA write packet */
	uint8_t has_immediates;
	uint8_t has_sends; /* saw a SEND packet */
	uint8_t owner;     /* enum fc_flow_owner */

	uint64_t first_psn;    /* unwrapped PSN of the lowest write packet seen */
	uint64_t expected_psn; /* one past the end of the furthest message known */
	uint64_t last_message; /* pool position of the message with the highest PSN, 0 if none */
	/* Of a message that would start at expected_psn: UINT64_MAX if not known, and
	 * whether it would be a count. They outlive the records they come from. */
	uint64_t next_number, next_counted;
	/* Of the message before it: the run it is of, and its place there plus 1; 0: none. */
	uint64_t run_psn, run_next;
	uint64_t messages;
	uint64_t duplicate_packets, icrc_bad_frames, ack_packets, nak_packets;
	uint64_t lost_holes;   /* packets in holes that no longer fit below */
	uint64_t last_ack_psn; /* 24 bit, as in the BTH of the last ACK of this flow */
	uint64_t last_ack_msn;
	/* 1: another owner of the key has sent a whole message since this one's last packet.
	 * 0 again as soon as this one sends. */
	uint8_t retired;
	uint8_t spare;
	/* Pauses in which all PSNs may have passed once, and nothing tells whether they did. */
	uint16_t unproven_pauses;
	/* Owners of one key: index + 1 of the next one in the list, 0 at its end. */
	uint32_t next_owner;
	/* Packets of it since another owner of the key sent the last one; while there are
	 * several. */
	uint64_t unbroken;
	uint64_t owners_made; /* of its key, up to now; of the first in the first list */
	/* Unwrapped; 0: none. The receiver refused the request that has this PSN, and
	 * took nothing after it: a queue pair in error drops what comes (IB 9.9.3). */
	uint64_t refused_psn;
	uint64_t refused_next; /* next_psn when it was refused */
	/* Packets far from all that it has under way, and the 24-bit PSN of the first of them;
	 * none once one came that is not. */
	uint64_t leap_psn, leap_packets;
	/* Its last memory keys, each at its number modulo FC_FLOW_KEYS; they outlive the
	 * records they come from. */
	uint32_t rkeys[FC_FLOW_KEYS];
	uint64_t rkeys_ever;
	uint64_t holes_used;
	struct fc_psn_range holes[FC_FLOW_HOLES];     /* missing so far, ascending */
	uint64_t more_networks[FC_FLOW_NETWORKS - 1]; /* of the list's first owner, likewise */
	uint8_t spare_lines[40];
};

/* Of a network: what kind of number it is, the innermost VLAN, the number. 0 is no network, and
 * what a mirror's own encapsulation says is none. */
enum fc_network {
	FC_NETWORK_SEEN = 1, /* what it is, even if untagged */
	FC_NETWORK_VXLAN = 2,
	FC_NETWORK_NVGRE = 4,
	FC_NETWORK_KIND_SHIFT = 48,
	FC_NETWORK_VLAN_SHIFT = 32,
};

enum fc_flow_owner {
	FC_OWNER_DOUBTED = 1, /* a packet came that this owner cannot have sent */
	FC_OWNER_PORTS = 2,   /* sends from more than one UDP port */
	FC_OWNER_SEVERAL = 4, /* its key has other owners, too */
	FC_OWNER_SILENT = 8,  /* no write or SEND packet came of it yet */
};

/* What a record is of. Only writes have numbers, keys and addresses. */
enum fc_message_kind {
	FC_KIND_WRITE = 0,
	/* From its First on as far as nothing is missing: packets and length_bytes
	 * grow until FC_MESSAGE_LAST; then packets_seen, 0 before, equals packets. */
	FC_KIND_SEND = 1,
	/* A run of SEND packets whose First is not next to them yet: their marks name
	 * no message, as it is not known how far into it they are. */
	FC_KIND_SEND_PART = 2,
};

enum fc_message_flags {
	FC_MESSAGE_RETH = 1,       /* address, key and length are from a RETH */
	FC_MESSAGE_IMMEDIATE = 2,  /* ended with immediate */
	FC_MESSAGE_LAST = 4,       /* last packet seen */
	FC_MESSAGE_INFERRED = 8,   /* start lost; length taken from the immediate */
	FC_MESSAGE_LINE_FLAG = 16, /* line_flag holds something */
	FC_MESSAGE_COUNTED = 32,   /* number is an unbroken count from the flow's PSN 0 */
	FC_MESSAGE_CLOSING = 64,   /* empty, to address and key 0: closes the write before it */
	FC_MESSAGE_REFUSED = 128,  /* never reached memory; packets_seen is and stays 0 */
};

/* What its memory key says of who sent it. */
enum fc_message_standing {
	FC_STANDING_KNOWN = 0, /* its owner used the key before, or it is the first one */
	/* The key is new where the next message belongs. Believed; it gives way to a known key. */
	FC_STANDING_FRESH = 1,
	/* The key is new out of order, or a known key took its PSNs: no plan places it. */
	FC_STANDING_UNPROVEN = 2,
};

/* The first cache line is what later packets need, its end what they change. */
struct fc_message {
	uint64_t position;  /* commit word: own pool position, written last */
	uint64_t previous;  /* pool position of the message before it in PSN order, 0 if unknown */
	uint64_t first_psn; /* unwrapped */
	uint32_t packets;   /* PSNs it spans */
	uint32_t flow;
	uint32_t length_bytes; /* RETH DMA length; of a SEND the bytes of its packets */
	uint32_t pmtu_bytes;

	uint64_t last_ns;
	uint32_t packets_seen; /* distinct ones so far; == packets: complete */
	uint32_t immediate;    /* the four bytes as a big-endian word */
	uint32_t line_flag; /* words 1 and 3 of the first 16 payload bytes, where they are equal */
	uint8_t flags;      /* enum fc_message_flags */
	uint8_t opcode;     /* of its first packet seen */
	uint8_t head_bytes; /* valid bytes of head */
	uint8_t kind;       /* enum fc_message_kind */

	uint64_t number; /* message number of the flow from 0; UINT64_MAX if not known */
	uint64_t va;     /* RETH virtual address */
	uint64_t first_ns;
	uint32_t rkey;
	uint32_t standing; /* enum fc_message_standing */
	uint8_t head[16];  /* first payload bytes: what tells an incarnation apart */
	/* The unbroken run of messages it is of, by the PSN of the first one, and its place
	 * there from 0: what counts where the flow's own start was not seen. */
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
	/* Published by release; never less: readers keep what they read of a flow. What a killed
	 * parser made is made again, the same by the same packets. */
	uint64_t flows_used;
	uint64_t flows_made;    /* as the parser counts them: no more than flows_used */
	uint64_t messages_made; /* pool position of the newest message */
	uint64_t silent_flows;  /* of flows_made, those with FC_OWNER_SILENT */
	uint8_t pad_used[96];
	/* Undo journal: before a span's first change of a record, its old bytes go
	 * here. base_position == ring.parsed after a kill: roll back. */
	uint64_t undo_base_position;
	uint64_t undo_used_bytes;
	uint8_t pad_undo[112];
};

#endif
