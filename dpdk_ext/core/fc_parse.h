/* Decodes one frame to one verdict, independently of other frames. Read by the compiler and by
 * cffi. */
#ifndef FC_PARSE_H
#define FC_PARSE_H

#include "fc_counters.h"
#include "fc_flow.h"

enum fc_packet_flags {
	FC_PACKET_ROCE = 1, /* UDP 4791 with consistent lengths: ICRC can be checked */
	FC_PACKET_VLAN = 2,
	FC_PACKET_SHIM = 4, /* the BTH follows a vendor shim */
	FC_PACKET_RETH = 8, /* va, rkey, length_bytes are valid */
	FC_PACKET_IMMEDIATE = 16,
	FC_PACKET_LINE_FLAG = 32,
	FC_PACKET_ICRC_CHECKED = 64,
	FC_PACKET_ENCAPSULATED = 128, /* came in a tunnel, whose headers were removed */
};

/* The outermost tunnel that a frame came in. */
enum fc_tunnel_kind {
	FC_TUNNEL_NONE,
	FC_TUNNEL_GRE, /* plain, with Ethernet, NVGRE */
	FC_TUNNEL_ERSPAN_I,
	FC_TUNNEL_ERSPAN_II,
	FC_TUNNEL_ERSPAN_III,
	FC_TUNNEL_VXLAN,
	FC_TUNNEL_KINDS
};

struct fc_packet {
	struct fc_flow_key key;
	uint64_t network; /* enum fc_network; of every frame with an Ethernet header */
	uint64_t va;
	uint32_t psn; /* 24 bit, as in the BTH */
	uint32_t rkey, length_bytes;
	uint32_t immediate; /* the four bytes as a big-endian word */
	uint32_t line_flag; /* words 1 and 3 of the first 16 payload bytes, if equal */
	uint32_t msn;       /* AETH, 24 bit */
	uint32_t l3_at, udp_at, bth_at, icrc_at; /* from the start of the frame */
	uint16_t payload_at, payload_bytes;      /* without pad and ICRC */
	uint16_t udp_source_port;
	uint8_t opcode, verdict, flags, syndrome;
	uint8_t tunnel; /* enum fc_tunnel_kind */
	uint8_t spare[5];
};

/* Decodes headers to verdict and fields. frame_bytes may be less than wire_bytes (snap length).
 * Returns the verdict, which is also in out->verdict. */
int fc_decode(const uint8_t *frame, uint32_t frame_bytes, uint32_t wire_bytes,
	      struct fc_packet *out);
/* 1: the ICRC of a packet with FC_PACKET_ROCE is right; else 0. */
int fc_icrc_right(const uint8_t *frame, const struct fc_packet *packet);
/* Verdict by fc_decode and the ICRC. */
int fc_parse_frame_verdict(const uint8_t *frame, uint32_t frame_bytes, uint32_t wire_bytes,
			   struct fc_packet *out);

#endif
