/* Ethernet to ICRC: all header offsets and opcodes that FlowCheck uses. Wire structs consist of
 * bytes: no packing pragma, bit-field order or alignment. IB: InfiniBand Architecture
 * Specification vol 1 rel 1.4; RoCEv2: its annex A17. */
#ifndef FC_ROCE_H
#define FC_ROCE_H

#include "fc_common.h"

/* IEEE 802 numbers (IANA "ieee-802-numbers") */
enum fc_ethertype {
	FC_ETHERTYPE_MIN = 0x0600, /* below: 802.3 length or unused */
	FC_ETHERTYPE_IPV4 = 0x0800,
	FC_ETHERTYPE_ARP = 0x0806,
	FC_ETHERTYPE_RARP = 0x8035,
	FC_ETHERTYPE_VLAN = 0x8100,
	FC_ETHERTYPE_IPV6 = 0x86dd,
	FC_ETHERTYPE_QINQ = 0x88a8,
	FC_ETHERTYPE_LLDP = 0x88cc,
	FC_ETHERTYPE_PTP = 0x88f7,
	FC_ETHERTYPE_MACSEC = 0x88e5,
	FC_ETHERTYPE_ROCE1 = 0x8915,
	FC_ETHERTYPE_QINQ_OLD = 0x9100,
};

enum fc_ip_protocol {
	FC_IP_HOP_BY_HOP = 0,
	FC_IP_ICMP = 1,
	FC_IP_TCP = 6,
	FC_IP_UDP = 17,
	FC_IP_ROUTING = 43,
	FC_IP_FRAGMENT = 44,
	FC_IP_GRE = 47,
	FC_IP_ESP = 50,
	FC_IP_ICMP6 = 58,
	FC_IP_DESTINATION = 60,
};

enum fc_udp_port {
	FC_PORT_PTP_EVENT = 319,
	FC_PORT_PTP_GENERAL = 320,
	FC_PORT_PSP = 1000,
	FC_PORT_ESP = 4500, /* RFC 3948 */
	FC_PORT_VXLAN = 4789,
	FC_PORT_ROCE = 4791,
};

/* IB table 38 (opcode = transport << 5 | operation) and RoCEv2 A17.9.3 (CNP) */
enum fc_opcode {
	FC_RC_SEND_FIRST = 0x00,
	FC_RC_SEND_MIDDLE = 0x01,
	FC_RC_SEND_LAST = 0x02,
	FC_RC_SEND_LAST_IMM = 0x03,
	FC_RC_SEND_ONLY = 0x04,
	FC_RC_SEND_ONLY_IMM = 0x05,
	FC_RC_WRITE_FIRST = 0x06,
	FC_RC_WRITE_MIDDLE = 0x07,
	FC_RC_WRITE_LAST = 0x08,
	FC_RC_WRITE_LAST_IMM = 0x09,
	FC_RC_WRITE_ONLY = 0x0a,
	FC_RC_WRITE_ONLY_IMM = 0x0b,
	FC_RC_READ_REQUEST = 0x0c,
	FC_RC_READ_RESPONSE_FIRST = 0x0d,
	FC_RC_READ_RESPONSE_ONLY = 0x10,
	FC_RC_ACK = 0x11,
	FC_RC_ATOMIC_ACK = 0x12,
	FC_RC_COMPARE_SWAP = 0x13,
	FC_RC_FETCH_ADD = 0x14,
	FC_RC_SEND_LAST_INVALIDATE = 0x16,
	FC_RC_SEND_ONLY_INVALIDATE = 0x17,
	FC_UD_SEND_ONLY = 0x64,
	FC_UD_SEND_ONLY_IMM = 0x65,
	FC_ROCE_CNP = 0x81,
};

enum fc_wire_limits {
	FC_PMTU_MIN = 256,
	FC_PMTU_MAX = 4096,
	FC_ICRC_BYTES = 4,
	FC_LLC_STP = 0x424203, /* DSAP, SSAP, control of 802.1D BPDUs */
	FC_LLC_SNAP = 0xaaaa03,
	FC_SHIM_BYTES = 28,         /* vendor telemetry between UDP and BTH */
	FC_SHIM_FILL_OPCODE = 0xaa, /* its byte at the place of a BTH's opcode */
	FC_SHIM_FILL_QP = 0xbbbbbb, /* and of the destination QP */
};
#define FC_MESSAGE_BYTES_MAX 0x80000000u /* IB 9.7.4.1.5: 2^31 bytes */

struct fc_ethernet {
	uint8_t destination[6], source[6], type[2];
};
_Static_assert(sizeof(struct fc_ethernet) == 14, "Ethernet is 14 bytes on the wire");

struct fc_vlan {
	uint8_t tci[2], type[2];
};

struct fc_ipv4 {
	uint8_t version_ihl, tos, total_length[2], id[2], fragment[2], ttl, protocol, checksum[2];
	uint8_t source[4], destination[4];
};
_Static_assert(sizeof(struct fc_ipv4) == 20, "IPv4 is 20 bytes without options");

struct fc_ipv6 {
	uint8_t version_class_label[4], payload_length[2], next, hop_limit;
	uint8_t source[16], destination[16];
};
_Static_assert(sizeof(struct fc_ipv6) == 40, "IPv6 is 40 bytes");

/* Hop-by-hop, routing and destination options; length in units of 8 bytes beyond the first 8. */
struct fc_ipv6_extension {
	uint8_t next, length, options[6];
};

struct fc_udp {
	uint8_t source[2], destination[2], length[2], checksum[2];
};
_Static_assert(sizeof(struct fc_udp) == 8, "UDP is 8 bytes");

/* flags: solicited 1, migration 1, pad 2, transport version 4 */
struct fc_bth {
	uint8_t opcode, flags, pkey[2], ecn, dest_qp[3], ack_req, psn[3];
};
_Static_assert(sizeof(struct fc_bth) == 12, "BTH is 12 bytes");

struct fc_reth {
	uint8_t va[8], rkey[4], length[4];
};
_Static_assert(sizeof(struct fc_reth) == 16, "RETH is 16 bytes");

struct fc_immdt {
	uint8_t data[4];
};

/* AETH syndromes that put the queue pair in error (IB 9.7.5.2.1, table 46): invalid
 * request, remote access, remote operation, invalid RD request. */
static inline bool fc_is_fatal_nak(uint8_t syndrome)
{
	return syndrome >= 0x61 && syndrome <= 0x64;
}

struct fc_aeth {
	uint8_t syndrome, msn[3];
};

struct fc_deth {
	uint8_t qkey[4], reserved, source_qp[3];
};
_Static_assert(sizeof(struct fc_deth) == 8, "DETH is 8 bytes");

/* The rest of a frame. Every header is read with fc_take(). */
struct fc_cursor {
	const uint8_t *pos, *end;
};

static inline size_t fc_left(const struct fc_cursor *c)
{
	return (size_t)(c->end - c->pos);
}

static inline const void *fc_take(struct fc_cursor *c, size_t bytes)
{
	if (FC_UNLIKELY(fc_left(c) < bytes))
		return NULL;
	const void *header = c->pos;
	c->pos += bytes;
	return header;
}

static inline bool fc_is_write(uint8_t opcode)
{
	return opcode >= FC_RC_WRITE_FIRST && opcode <= FC_RC_WRITE_ONLY_IMM;
}

static inline bool fc_is_send(uint8_t opcode)
{
	return opcode <= FC_RC_SEND_ONLY_IMM || opcode == FC_RC_SEND_LAST_INVALIDATE ||
	       opcode == FC_RC_SEND_ONLY_INVALIDATE;
}

/* For SEND opcodes: first packet of a message, last packet, four bytes before the payload
 * (immediate, or the key to invalidate). */
static inline bool fc_send_starts(uint8_t opcode)
{
	return opcode == FC_RC_SEND_FIRST || opcode == FC_RC_SEND_ONLY ||
	       opcode == FC_RC_SEND_ONLY_IMM || opcode == FC_RC_SEND_ONLY_INVALIDATE;
}

static inline bool fc_send_ends(uint8_t opcode)
{
	return opcode > FC_RC_SEND_MIDDLE;
}

static inline bool fc_send_has_word(uint8_t opcode)
{
	return opcode == FC_RC_SEND_LAST_IMM || opcode == FC_RC_SEND_ONLY_IMM ||
	       opcode >= FC_RC_SEND_LAST_INVALIDATE;
}

static inline bool fc_has_reth(uint8_t opcode)
{
	return opcode == FC_RC_WRITE_FIRST || opcode == FC_RC_WRITE_ONLY ||
	       opcode == FC_RC_WRITE_ONLY_IMM || opcode == FC_RC_READ_REQUEST;
}

static inline bool fc_has_immediate(uint8_t opcode)
{
	return opcode == FC_RC_WRITE_LAST_IMM || opcode == FC_RC_WRITE_ONLY_IMM;
}

static inline bool fc_is_last(uint8_t opcode)
{
	return opcode >= FC_RC_WRITE_LAST && opcode <= FC_RC_WRITE_ONLY_IMM;
}

/* PSNs are 24-bit serial numbers: the sign of the difference gives the order. */
static inline int32_t fc_psn_diff(uint32_t a, uint32_t b)
{
	return (int32_t)((a - b) << 8) >> 8;
}

#endif
