#include "fcl_frame.h"

#include <string.h>
#include <zlib.h>

enum {
	PKEY_DEFAULT = 0xffff,
	FLAG_MIGRATED = 0x40,
	TTL = 64,
	DONT_FRAGMENT = 0x40,
	IPV4_BYTES = 20,
	UDP_BYTES = 8,
	BTH_ECN_AT = 4, /* FECN, BECN and reserved bits: masked in the ICRC */
	ACK_REQUEST = 0x80,
};

static void put16(uint8_t *to, uint32_t value)
{
	to[0] = (uint8_t)(value >> 8);
	to[1] = (uint8_t)value;
}

static void put24(uint8_t *to, uint32_t value)
{
	to[0] = (uint8_t)(value >> 16);
	put16(to + 1, value);
}

static void put32(uint8_t *to, uint32_t value)
{
	put16(to, value >> 16);
	put16(to + 2, value);
}

static void put64(uint8_t *to, uint64_t value)
{
	put32(to, (uint32_t)(value >> 32));
	put32(to + 4, (uint32_t)value);
}

/* RFC 1071. */
static uint16_t ip_checksum(const uint8_t *header)
{
	uint32_t sum = 0;
	for (int i = 0; i < IPV4_BYTES; i += 2)
		sum += fc_be16(header + i);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/* RoCEv2 annex A17.3.3: CRC-32 of Ethernet over eight bytes of ones and the packet from its IP header
 * on, what routers may change set to ones. `bytes`: from the IP header to the end of the pad. */
static uint32_t icrc_of(const uint8_t *ip, size_t bytes)
{
	uint8_t masked[8 + IPV4_BYTES + UDP_BYTES + BTH_ECN_AT + 1];
	memset(masked, 0xff, 8);
	memcpy(masked + 8, ip, sizeof(masked) - 8);
	struct fc_ipv4 *header = (struct fc_ipv4 *)(masked + 8);
	header->tos = header->ttl = 0xff;
	memset(header->checksum, 0xff, 2);
	memset(((struct fc_udp *)(masked + 8 + IPV4_BYTES))->checksum, 0xff, 2);
	masked[sizeof(masked) - 1] = 0xff;
	const size_t done = sizeof(masked) - 8;
	const uLong crc = crc32(crc32(0, NULL, 0), masked, sizeof(masked));
	return (uint32_t)crc32(crc, ip + done, (uInt)(bytes - done));
}

static uint8_t *put_headers(const struct fcl_packet *packet, uint8_t *at)
{
	const uint32_t pad = -packet->payload_bytes & 3;
	struct fc_bth *bth = (struct fc_bth *)at;
	bth->opcode = packet->opcode;
	bth->flags = (uint8_t)(FLAG_MIGRATED | pad << 4);
	put16(bth->pkey, PKEY_DEFAULT);
	bth->ecn = 0;
	put24(bth->dest_qp, packet->dest_qp);
	bth->ack_req = packet->ack_request ? ACK_REQUEST : 0;
	put24(bth->psn, packet->psn);
	at += sizeof(*bth);
	if (fc_has_reth(packet->opcode)) {
		struct fc_reth *reth = (struct fc_reth *)at;
		put64(reth->va, packet->va);
		put32(reth->rkey, packet->rkey);
		put32(reth->length, packet->dma_length);
		at += sizeof(*reth);
	}
	if (fc_has_immediate(packet->opcode)) {
		put32(at, packet->immediate);
		at += sizeof(struct fc_immdt);
	}
	if (packet->opcode == FC_RC_ACK) {
		struct fc_aeth *aeth = (struct fc_aeth *)at;
		aeth->syndrome = packet->syndrome;
		put24(aeth->msn, packet->msn);
		at += sizeof(*aeth);
	}
	return at;
}

size_t fcl_frame_build(const struct fcl_path *path, const struct fcl_packet *packet, uint8_t *out)
{
	struct fc_ethernet *ethernet = (struct fc_ethernet *)out;
	memcpy(ethernet->destination, path->destination_mac, 6);
	memcpy(ethernet->source, path->source_mac, 6);
	put16(ethernet->type, FC_ETHERTYPE_IPV4);
	uint8_t *at = put_headers(packet, out + FCL_BTH_AT);
	if (packet->payload_bytes)
		memcpy(at, packet->payload, packet->payload_bytes);
	at += packet->payload_bytes;
	for (; (at - out - FCL_BTH_AT) & 3; at++)
		*at = 0;
	struct fc_ipv4 *ip = (struct fc_ipv4 *)(out + FCL_IPV4_AT);
	const uint32_t ip_bytes = (uint32_t)(at - out - FCL_IPV4_AT + FC_ICRC_BYTES);
	memset(ip, 0, sizeof(*ip));
	ip->version_ihl = 0x45;
	ip->tos = path->traffic_class;
	put16(ip->total_length, ip_bytes);
	ip->fragment[0] = DONT_FRAGMENT;
	ip->ttl = TTL;
	ip->protocol = FC_IP_UDP;
	memcpy(ip->source, path->source_ip, 4);
	memcpy(ip->destination, path->destination_ip, 4);
	put16(ip->checksum, ip_checksum((const uint8_t *)ip));
	struct fc_udp *udp = (struct fc_udp *)(out + FCL_UDP_AT);
	put16(udp->source, path->udp_source_port);
	put16(udp->destination, FC_PORT_ROCE);
	put16(udp->length, ip_bytes - IPV4_BYTES);
	put16(udp->checksum, 0);
	const uint32_t icrc = icrc_of(out + FCL_IPV4_AT, ip_bytes - FC_ICRC_BYTES);
	for (int i = 0; i < FC_ICRC_BYTES; i++)
		*at++ = (uint8_t)(icrc >> 8 * i);
	return (size_t)(at - out);
}

static bool take_headers(struct fc_cursor *left, struct fcl_packet *out)
{
	if (fc_has_reth(out->opcode)) {
		const struct fc_reth *reth = fc_take(left, sizeof(*reth));
		if (!reth)
			return false;
		out->va = fc_be64(reth->va);
		out->rkey = fc_be32(reth->rkey);
		out->dma_length = fc_be32(reth->length);
	}
	if (fc_has_immediate(out->opcode)) {
		const struct fc_immdt *immediate = fc_take(left, sizeof(*immediate));
		if (!immediate)
			return false;
		out->immediate = fc_be32(immediate->data);
	}
	if (out->opcode == FC_RC_ACK) {
		const struct fc_aeth *aeth = fc_take(left, sizeof(*aeth));
		if (!aeth)
			return false;
		out->syndrome = aeth->syndrome;
		out->msn = fc_be24(aeth->msn);
	}
	return true;
}

enum fcl_frame_verdict fcl_frame_parse(const uint8_t *frame, size_t bytes, struct fcl_packet *out)
{
	memset(out, 0, sizeof(*out));
	if (bytes < FCL_BTH_AT + sizeof(struct fc_bth) + FC_ICRC_BYTES)
		return FCL_FRAME_FOREIGN;
	const struct fc_ipv4 *ip = (const struct fc_ipv4 *)(frame + FCL_IPV4_AT);
	const size_t ip_bytes = fc_be16(ip->total_length);
	if (ip->version_ihl != 0x45 || ip->protocol != FC_IP_UDP ||
	    fc_be16(ip->fragment) & 0x3fff || ip_bytes > bytes - FCL_IPV4_AT ||
	    ip_bytes < IPV4_BYTES + UDP_BYTES + sizeof(struct fc_bth) + FC_ICRC_BYTES)
		return FCL_FRAME_FOREIGN;
	const uint8_t *end = frame + FCL_IPV4_AT + ip_bytes - FC_ICRC_BYTES;
	const uint32_t icrc = icrc_of(frame + FCL_IPV4_AT, ip_bytes - FC_ICRC_BYTES);
	for (int i = 0; i < FC_ICRC_BYTES; i++)
		if (end[i] != (uint8_t)(icrc >> 8 * i))
			return FCL_FRAME_BAD_ICRC;
	struct fc_cursor left = { frame + FCL_BTH_AT, end };
	const struct fc_bth *bth = fc_take(&left, sizeof(*bth));
	out->opcode = bth->opcode;
	out->dest_qp = fc_be24(bth->dest_qp);
	out->psn = fc_be24(bth->psn);
	out->ack_request = bth->ack_req & ACK_REQUEST;
	const uint32_t pad = bth->flags >> 4 & 3;
	if (!take_headers(&left, out) || fc_left(&left) < pad)
		return FCL_FRAME_FOREIGN;
	out->payload = left.pos;
	out->payload_bytes = (uint32_t)(fc_left(&left) - pad);
	return FCL_FRAME_GOOD;
}
