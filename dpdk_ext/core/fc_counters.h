/* What each stage counts. Plain enough for the compiler and for cffi's cdef()
 * alike: this file is read by both, so it holds declarations only.
 * One writer per struct, any number of readers. Field name = metric name. */
#ifndef FC_COUNTERS_H
#define FC_COUNTERS_H

#include <stdint.h>

/* Written by capture. rx_frames = pushed_frames + ring_full_frames +
 * oversize_frames once the source is idle. */
struct fc_capture_counters {
	uint64_t rx_frames, rx_bytes;
	uint64_t pushed_frames;
	uint64_t ring_full_frames; /* dropped: the parser lags a whole ring */
	uint64_t oversize_frames;  /* dropped: longer than a slot */
	uint64_t snapped_frames;   /* pushed, but shorter than they were on the wire */
	uint64_t multi_segment_frames;
	uint64_t nic_missed_frames;       /* rte_eth_stats.imissed */
	uint64_t nic_no_mbuf_frames;      /* rte_eth_stats.rx_nombuf */
	uint64_t nic_error_frames;        /* rte_eth_stats.ierrors */
	uint64_t interface_missed_frames; /* the kernel dropped them: no room (af_packet) */
	uint64_t engine_copied_frames;    /* copied by a DMA engine */
	uint64_t engine_refused_frames;   /* engine full: copied by the CPU */
};

/* What a frame turned out to be. Exactly one verdict per frame; the counters
 * below have one field per verdict, in this order (asserted in fc_parse.c). */
enum fc_verdict {
	FC_WRITE,    /* RC RDMA write packet, placed in its message */
	FC_ORPHAN,   /* RC RDMA write packet whose message start was not seen */
	FC_STALE,    /* RC write or SEND packet of a message no longer kept */
	FC_DOUBTFUL, /* RC write or SEND packet that may be of its queue pair's next owner */
	FC_REFUSED,  /* RC write or SEND packet of a message its receiver refused */
	FC_ACK,
	FC_NAK,
	FC_CNP,
	FC_MAD,  /* management datagram: UD to QP 0 or 1 */
	FC_UD,   /* other unreliable datagram */
	FC_SEND, /* RC SEND packet; placed where its mark names a message */
	FC_READ,
	FC_ATOMIC,
	FC_ROCE_OTHER, /* a known transport or opcode we do not follow */
	FC_SHIM,       /* RoCE behind a vendor shim after UDP (RTT probes) */
	FC_ENCRYPTED,  /* MACsec, IPsec ESP (in UDP as well), PSP: nothing inside is readable */
	FC_ICRC_BAD,
	FC_SNAPPED,   /* a RoCE frame cut by the capture's snap length */
	FC_MALFORMED, /* lengths that contradict each other */
	FC_FRAGMENT,  /* IPv4 or IPv6 fragment: refused */
	FC_TCP,
	FC_PTP,
	FC_UDP_OTHER,
	FC_ICMP,
	FC_IP_OTHER,
	FC_ARP,
	FC_LLDP,
	FC_STP,
	FC_LLC_OTHER,
	FC_ETHERNET_OTHER, /* a registered EtherType of no use to us: PFC, MPLS, EAPOL, LACP, ... */
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
	/* Beside the verdicts: these do not add up to frames. */
	uint64_t icrc_checked_frames, duplicate_packets, vlan_frames, encapsulated_frames;
	uint64_t flow_table_full_packets, incarnations; /* writes and SENDs without a record */
	uint64_t refused_messages;  /* known, when their receiver refused them or after */
	uint64_t unpaired_refusals; /* NAKs that end a queue pair, of none or several flows */
	/* Answers, READs and atomics without a record: only so many flows that never wrote or
	 * sent have one. */
	uint64_t flowless_packets;
};

/* Written by extract. */
struct fc_extract_counters {
	uint64_t seen_frames;                  /* slots released */
	uint64_t placed_packets, placed_bytes; /* data bytes written to a shard */
	uint64_t duplicate_bytes;              /* bytes that came again and were equal */
	uint64_t conflict_bytes;               /* bytes that came again and differed */
	uint64_t staged_packets, staged_bytes;
	uint64_t staging_full_packets;
	uint64_t ignored_packets; /* of flows or sends that carry nothing final */
	uint64_t held_packets;    /* orphans kept until their message is known */
	uint64_t orphan_dropped_packets;
	uint64_t flag_mismatch_lines;
	uint64_t deviating_messages;     /* size or number not as planned */
	uint64_t unlearned_full_packets; /* of staging_full_packets: their flow had no plan yet */
	uint64_t held_given_up_packets;  /* of orphan_dropped_packets: kept, and then not */
	/* Of messages of which not all had come, and that gave their room to others. */
	uint64_t claims_given_up_packets;
};

#endif
