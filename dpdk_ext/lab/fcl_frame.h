/* RoCEv2 frames of the emulated port, whole: Ethernet, IPv4, UDP, BTH ... ICRC. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fc_roce.h"

enum {
	FCL_PAYLOAD_MAX = 4096,
	FCL_HEADERS_MAX = 14 + 20 + 8 + 12 + 16 + 4, /* Ethernet, IPv4, UDP, BTH, RETH, ImmDt */
	FCL_FRAME_MAX = FCL_HEADERS_MAX + FCL_PAYLOAD_MAX + 3 + FC_ICRC_BYTES,
	FCL_IPV4_AT = 14,
	FCL_UDP_AT = 34,
	FCL_BTH_AT = 42,
};

/* Where a frame goes and how it looks below the BTH; the same for all of a QP. */
struct fcl_path {
	uint8_t source_mac[6], destination_mac[6];
	uint8_t source_ip[4], destination_ip[4];
	uint16_t udp_source_port;
	uint8_t traffic_class;
};

/* What a frame says from the BTH on; integers in host order. */
struct fcl_packet {
	uint8_t opcode;
	bool ack_request;
	uint32_t dest_qp, psn;
	uint64_t va;               /* with RETH */
	uint32_t rkey, dma_length; /* with RETH */
	uint32_t immediate;        /* its four bytes as they lie, first byte highest */
	uint8_t syndrome;          /* AETH */
	uint32_t msn;              /* AETH */
	const uint8_t *payload;
	uint32_t payload_bytes;
};

/* Bytes of the frame written to `out`, which holds FCL_FRAME_MAX. */
size_t fcl_frame_build(const struct fcl_path *path, const struct fcl_packet *packet, uint8_t *out);

enum fcl_frame_verdict { FCL_FRAME_GOOD, FCL_FRAME_FOREIGN, FCL_FRAME_BAD_ICRC };

/* Takes a received frame apart; `payload` points into it. Nothing in it is trusted. */
enum fcl_frame_verdict fcl_frame_parse(const uint8_t *frame, size_t bytes, struct fcl_packet *out);
