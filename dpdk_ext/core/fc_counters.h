/* Counters of each stage. Declarations only, since both the compiler and cffi's cdef() read this
 * file. One writer per struct, any number of readers. Field names are metric names. */
#ifndef FC_COUNTERS_H
#define FC_COUNTERS_H

#include <stdint.h>

/* Written by capture. rx_frames = pushed_frames + ring_full_frames + oversize_frames when the
 * source is idle. */
struct fc_capture_counters {
	uint64_t rx_frames, rx_bytes;
	uint64_t pushed_frames;
	uint64_t ring_full_frames; /* dropped: the ring is full */
	uint64_t oversize_frames;  /* dropped: longer than a slot */
	uint64_t snapped_frames;   /* pushed, but shorter than on the wire */
	uint64_t multi_segment_frames;
	uint64_t nic_missed_frames;       /* rte_eth_stats.imissed */
	uint64_t nic_no_mbuf_frames;      /* rte_eth_stats.rx_nombuf */
	uint64_t nic_error_frames;        /* rte_eth_stats.ierrors */
	uint64_t interface_missed_frames; /* dropped by the kernel: no buffer (af_packet) */
	uint64_t engine_copied_frames;    /* copied by a DMA engine */
	uint64_t engine_refused_frames;   /* copied by the CPU: the engine was full */
};

/* The parser's verdict on a frame: exactly one per frame. The counters below have one field per
 * verdict in this order (asserted in fc_parse.c). */
enum fc_verdict {
	FC_WRITE,    /* RC RDMA write packet, placed in its message */
	FC_ORPHAN,   /* RC RDMA write packet of a message whose start was not captured */
	FC_STALE,    /* RC write or SEND packet of a message whose record is gone */
	FC_DOUBTFUL, /* RC write or SEND packet, perhaps of another owner of its queue pair */
	FC_REFUSED,  /* RC write or SEND packet of a message that its receiver refused */
	FC_ACK,
	FC_NAK,
	FC_CNP,
	FC_MAD,  /* management datagram: UD to QP 0 or 1 */
	FC_UD,   /* other unreliable datagram */
	FC_SEND, /* RC SEND packet; placed if its mark names a message */
	FC_READ,
	FC_ATOMIC,
	FC_ROCE_OTHER, /* a known transport or opcode that is not followed */
	FC_SHIM,       /* RoCE behind a vendor shim after UDP (RTT probes) */
	FC_ENCRYPTED,  /* MACsec, IPsec ESP (also in UDP), PSP: the content is encrypted */
	FC_ICRC_BAD,
	FC_SNAPPED,   /* a RoCE frame truncated by the capture's snap length */
	FC_MALFORMED, /* lengths that contradict each other */
	FC_FRAGMENT,  /* IPv4 or IPv6 fragment: not reassembled */
	FC_TCP,
	FC_PTP,
	FC_UDP_OTHER,
	FC_ICMP,
	FC_IP_OTHER,
	FC_ARP,
	FC_LLDP,
	FC_STP,
	FC_LLC_OTHER,
	FC_ETHERNET_OTHER, /* a registered EtherType without RoCE: PFC, MPLS, EAPOL, LACP, ... */
	FC_UNKNOWN,
	FC_VERDICTS
};

struct fc_parse_counters {
	uint64_t write_frames, orphan_frames, stale_frames, doubtful_frames, refused_frames,
		ack_frames, nak_frames, cnp_frames, mad_frames, ud_frames, send_frames, read_frames,
		atomic_frames, roce_other_frames, shim_frames, encrypted_frames, icrc_bad_frames,
		snapped_frames, malformed_frames, fragment_frames, tcp_frames, ptp_frames,
		udp_other_frames, icmp_frames, ip_other_frames, arp_frames, lldp_frames, stp_frames,
		llc_other_frames, ethernet_other_frames, unknown_frames;
	/* Not verdicts: these do not add up to the number of frames. */
	uint64_t icrc_checked_frames, duplicate_packets, vlan_frames, encapsulated_frames;
	uint64_t flow_table_full_packets, incarnations; /* writes and SENDs without a record */
	uint64_t refused_messages;  /* known messages that their receiver refused */
	uint64_t unpaired_refusals; /* NAKs that end a queue pair of no certain flow */
	/* ACKs, READs and atomics without a flow record: only a limited number of flows that never
	 * wrote or sent has one. */
	uint64_t flowless_packets;
};

/* Written by extract. */
struct fc_extract_counters {
	uint64_t seen_frames;                  /* released slots */
	uint64_t placed_packets, placed_bytes; /* data bytes written to a shard */
	uint64_t duplicate_bytes;              /* bytes that arrived again with equal content */
	uint64_t conflict_bytes;               /* bytes that arrived again with other content */
	uint64_t staged_packets, staged_bytes;
	uint64_t staging_full_packets;
	uint64_t ignored_packets; /* of flows or sends without final data */
	uint64_t held_packets;    /* packets kept until their message is known */
	uint64_t orphan_dropped_packets;
	uint64_t flag_mismatch_lines;
	uint64_t deviating_messages;     /* size or number differs from the plan */
	uint64_t unlearned_full_packets; /* of staging_full_packets: no plan yet */
	uint64_t held_given_up_packets;  /* of orphan_dropped_packets: kept before */
	/* Packets of incomplete staged messages whose block was reclaimed for other messages. */
	uint64_t claims_given_up_packets;
};

#endif
