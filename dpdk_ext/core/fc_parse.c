#include "fc_parse.h"

#include "fc_icrc.h"
#include "fc_nccl.h"
#include "fc_roce.h"

_Static_assert(sizeof(struct fc_parse_counters) / 8 == FC_VERDICTS + 6,
	       "one counter per verdict, then the six beside them");
_Static_assert(offsetof(struct fc_parse_counters, unknown_frames) == FC_UNKNOWN * 8,
	       "counters stand in the order of their verdicts");
_Static_assert(offsetof(struct fc_parse_counters, icrc_bad_frames) == FC_ICRC_BAD * 8,
	       "counters stand in the order of their verdicts");
_Static_assert(sizeof(struct fc_flow_key) == 40, "keys are compared as five words");

/* Tags and extension headers beyond these carry no RoCE anybody sends; the
 * second bound keeps the copy the ICRC makes of the headers small. */
#define VLAN_TAGS_MAX 4
#define IPV6_EXTENSIONS_MAX 8
#define IPV6_EXTENSION_BYTES_MAX 256

/* A frame being taken apart. */
struct decoding {
	struct fc_cursor c;
	const uint8_t *frame;
	struct fc_packet *out;
	bool snapped;		/* the capture kept less than was on the wire */
};

static uint32_t at(const struct decoding *d)
{
	return (uint32_t)(d->c.pos - d->frame);
}

static enum fc_verdict cut(const struct decoding *d)
{
	return d->snapped ? FC_SNAPPED : FC_MALFORMED;
}

/* Ends the cursor where a length field says; what lies behind is link padding. */
static bool limit(struct decoding *d, size_t bytes)
{
	if (fc_left(&d->c) < bytes)
		return false;
	d->c.end = d->c.pos + bytes;
	return true;
}

/* Whole words: the low bits of a pad count say how many bytes to leave off. */
static bool take_payload(struct decoding *d, const struct fc_bth *bth)
{
	const size_t left = fc_left(&d->c), pad = bth->flags >> 4 & 3;

	if (left & 3 || left < pad || left - pad > FC_PMTU_MAX)
		return false;
	d->out->payload_at = (uint16_t)at(d);
	d->out->payload_bytes = (uint16_t)(left - pad);
	if (left - pad >= sizeof(struct fc_ll_line)) {
		struct fc_ll_line line;
		memcpy(&line, d->c.pos, sizeof line);
		if (line.flag1 == line.flag2 && line.flag1) {
			d->out->line_flag = line.flag1;
			d->out->flags |= FC_PACKET_LINE_FLAG;
		}
	}
	return true;
}

static bool is_pmtu(uint32_t bytes)
{
	return bytes >= FC_PMTU_MIN && bytes <= FC_PMTU_MAX && !(bytes & (bytes - 1));
}

/* IB 9.4.1, 9.7.4: First and Middle carry exactly the path MTU, Last 1 to that,
 * Only what its RETH says. What the flow's own path MTU adds, fc_message.c checks. */
static bool sizes_agree(const struct fc_packet *p)
{
	const uint32_t bytes = p->payload_bytes;

	switch (p->opcode) {
	case FC_RC_WRITE_FIRST:
		return is_pmtu(bytes) && p->length_bytes > bytes &&
		       p->length_bytes <= FC_MESSAGE_BYTES_MAX;
	case FC_RC_WRITE_MIDDLE:
		return is_pmtu(bytes);
	case FC_RC_WRITE_LAST:
	case FC_RC_WRITE_LAST_IMM:
		return bytes >= 1;
	default:
		return bytes == p->length_bytes;
	}
}

static bool take_reth(struct decoding *d)
{
	const struct fc_reth *reth = fc_take(&d->c, sizeof *reth);

	if (!reth)
		return false;
	d->out->va = fc_be64(reth->va);
	d->out->rkey = fc_be32(reth->rkey);
	d->out->length_bytes = fc_be32(reth->length);
	d->out->flags |= FC_PACKET_RETH;
	return true;
}

static enum fc_verdict decode_write(struct decoding *d, const struct fc_bth *bth)
{
	struct fc_packet *out = d->out;

	if (fc_has_reth(bth->opcode) && !take_reth(d))
		return FC_MALFORMED;
	if (fc_has_immediate(bth->opcode)) {
		const struct fc_immdt *immediate = fc_take(&d->c, sizeof *immediate);
		if (!immediate)
			return FC_MALFORMED;
		out->immediate = fc_be32(immediate->data);
		out->flags |= FC_PACKET_IMMEDIATE;
	}
	if (!take_payload(d, bth) || !sizes_agree(out))
		return FC_MALFORMED;
	return FC_WRITE;
}

static enum fc_verdict decode_ack(struct decoding *d)
{
	const struct fc_aeth *aeth = fc_take(&d->c, sizeof *aeth);

	if (!aeth)
		return FC_MALFORMED;
	d->out->syndrome = aeth->syndrome;
	d->out->msn = fc_be24(aeth->msn);
	/* IB 9.7.5.2.1: 0 is ACK, 1 RNR NAK, 3 NAK */
	return aeth->syndrome & 0x60 ? FC_NAK : FC_ACK;
}

static enum fc_verdict decode_ud(struct decoding *d)
{
	if (!fc_take(&d->c, sizeof(struct fc_deth)))
		return FC_MALFORMED;
	return d->out->key.dest_qp <= 1 ? FC_MAD : FC_UD;
}

static enum fc_verdict by_opcode(struct decoding *d, const struct fc_bth *bth)
{
	const uint8_t opcode = bth->opcode;

	if (fc_is_write(opcode))
		return decode_write(d, bth);
	if (opcode == FC_RC_ACK)
		return decode_ack(d);
	if (opcode <= FC_RC_SEND_ONLY_IMM || opcode == FC_RC_SEND_LAST_INVALIDATE ||
	    opcode == FC_RC_SEND_ONLY_INVALIDATE)
		return FC_SEND;
	if (opcode == FC_RC_READ_REQUEST)
		return take_reth(d) ? FC_READ : FC_MALFORMED;
	if (opcode >= FC_RC_READ_RESPONSE_FIRST && opcode <= FC_RC_READ_RESPONSE_ONLY)
		return FC_READ;
	if (opcode >= FC_RC_ATOMIC_ACK && opcode <= FC_RC_FETCH_ADD)
		return FC_ATOMIC;
	if (opcode == FC_UD_SEND_ONLY || opcode == FC_UD_SEND_ONLY_IMM)
		return decode_ud(d);
	return opcode == FC_ROCE_CNP ? FC_CNP : FC_ROCE_OTHER;
}

static bool is_shim(const struct fc_bth *bth)
{
	return bth->opcode == FC_SHIM_FILL_OPCODE && fc_be24(bth->dest_qp) == FC_SHIM_FILL_QP;
}

static enum fc_verdict decode_roce(struct decoding *d)
{
	struct fc_packet *out = d->out;

	out->bth_at = at(d);
	if (fc_left(&d->c) < sizeof(struct fc_bth) + FC_ICRC_BYTES)
		return FC_MALFORMED;
	d->c.end -= FC_ICRC_BYTES;
	out->icrc_at = (uint32_t)(d->c.end - d->frame);
	out->flags |= FC_PACKET_ROCE;
	const struct fc_bth *bth = fc_take(&d->c, sizeof *bth);
	if (FC_UNLIKELY(is_shim(bth))) {
		out->flags |= FC_PACKET_SHIM;
		out->bth_at += FC_SHIM_BYTES;
		if (!fc_take(&d->c, FC_SHIM_BYTES - sizeof *bth) ||
		    !(bth = fc_take(&d->c, sizeof *bth))) {
			out->bth_at -= FC_SHIM_BYTES;
			return FC_SHIM;
		}
	}
	out->opcode = bth->opcode;
	out->key.dest_qp = fc_be24(bth->dest_qp);
	out->psn = fc_be24(bth->psn);
	if (bth->flags & 0x0f) /* IB 9.2.5: transport version 0 is the only one */
		return FC_ROCE_OTHER;
	const enum fc_verdict verdict = by_opcode(d, bth);
	return out->flags & FC_PACKET_SHIM && verdict != FC_WRITE ? FC_SHIM : verdict;
}

static enum fc_verdict decode_udp(struct decoding *d, size_t ip_payload_bytes)
{
	const struct fc_udp *udp = fc_take(&d->c, sizeof *udp);

	if (!udp)
		return cut(d);
	const uint16_t source = fc_be16(udp->source), destination = fc_be16(udp->destination);
	if (FC_UNLIKELY(destination != FC_PORT_ROCE)) {
		const bool ptp = destination == FC_PORT_PTP_EVENT ||
				 destination == FC_PORT_PTP_GENERAL;
		return ptp ? FC_PTP : FC_UDP_OTHER;
	}
	d->out->udp_at = at(d) - (uint32_t)sizeof *udp;
	d->out->udp_source_port = source;
	if (fc_be16(udp->length) != ip_payload_bytes || ip_payload_bytes < sizeof *udp)
		return FC_MALFORMED;
	if (!limit(d, ip_payload_bytes - sizeof *udp))
		return cut(d);
	return decode_roce(d);
}

static enum fc_verdict by_ip_protocol(struct decoding *d, uint8_t protocol, size_t payload_bytes)
{
	switch (protocol) {
	case FC_IP_UDP:
		return decode_udp(d, payload_bytes);
	case FC_IP_TCP:
		return FC_TCP;
	case FC_IP_ICMP:
	case FC_IP_ICMP6:
		return FC_ICMP;
	default:
		return FC_IP_OTHER;
	}
}

static enum fc_verdict decode_ipv4(struct decoding *d)
{
	d->out->l3_at = at(d);
	const struct fc_ipv4 *ip = fc_take(&d->c, sizeof *ip);
	if (!ip)
		return cut(d);
	const size_t header_bytes = (size_t)(ip->version_ihl & 0x0f) * 4;
	const size_t total_bytes = fc_be16(ip->total_length);
	if (ip->version_ihl >> 4 != 4 || header_bytes < sizeof *ip)
		return FC_MALFORMED;
	if (fc_be16(ip->fragment) & 0x3fff) /* more fragments, or an offset (RFC 791) */
		return FC_FRAGMENT;
	if (!fc_take(&d->c, header_bytes - sizeof *ip))
		return cut(d);
	if (total_bytes < header_bytes && ip->protocol == FC_IP_UDP)
		return FC_MALFORMED;
	memset(d->out->key.source + 10, 0xff, 2);
	memcpy(d->out->key.source + 12, ip->source, 4);
	memset(d->out->key.destination + 10, 0xff, 2);
	memcpy(d->out->key.destination + 12, ip->destination, 4);
	return by_ip_protocol(d, ip->protocol, total_bytes - header_bytes);
}

static enum fc_verdict decode_ipv6(struct decoding *d)
{
	d->out->l3_at = at(d);
	const struct fc_ipv6 *ip = fc_take(&d->c, sizeof *ip);
	if (!ip)
		return cut(d);
	if (ip->version_class_label[0] >> 4 != 6)
		return FC_MALFORMED;
	memcpy(d->out->key.source, ip->source, 16);
	memcpy(d->out->key.destination, ip->destination, 16);
	size_t left = fc_be16(ip->payload_length), skipped = 0;
	uint8_t next = ip->next;
	for (int n = 0; n < IPV6_EXTENSIONS_MAX; n++) {
		if (next == FC_IP_FRAGMENT)
			return FC_FRAGMENT;
		if (FC_LIKELY(next != FC_IP_HOP_BY_HOP && next != FC_IP_ROUTING &&
			      next != FC_IP_DESTINATION))
			return by_ip_protocol(d, next, left);
		const struct fc_ipv6_extension *extension = fc_take(&d->c, sizeof *extension);
		if (!extension)
			return cut(d);
		const size_t bytes = 8 + 8 * (size_t)extension->length;
		skipped += bytes;
		if (left < bytes)
			return FC_MALFORMED;
		if (skipped > IPV6_EXTENSION_BYTES_MAX)
			return FC_IP_OTHER;
		if (!fc_take(&d->c, bytes - sizeof *extension))
			return cut(d);
		left -= bytes;
		next = extension->next;
	}
	return FC_IP_OTHER;
}

static enum fc_verdict decode_llc(struct decoding *d)
{
	const uint8_t *llc = fc_take(&d->c, 3);

	if (!llc)
		return cut(d);
	if (fc_be24(llc) == FC_LLC_STP)
		return FC_STP;
	/* Cisco's per-VLAN spanning tree: SNAP, OUI 00000c, type 010b */
	const uint8_t *snap = fc_be24(llc) == FC_LLC_SNAP ? fc_take(&d->c, 5) : NULL;
	return snap && fc_be24(snap) == 0x00000c && fc_be16(snap + 3) == 0x010b ? FC_STP
										 : FC_LLC_OTHER;
}

/* EtherTypes of IEEE's registry met in data centres that are of no use to us:
 * WoL, Wake, TRILL, RARP, AppleTalk, IPX, flow control/PFC, slow protocols,
 * MPLS, PPPoE, jumbo LLC, EAPOL, Profinet, EtherCAT, AoE, experiments, MACsec, PBB,
 * MVRP, MMRP, AVTP, NCSI, PRP, CFM, FCoE, FIP, TTEthernet, HSR, loopback, TEB, BPQ. */
static bool is_registered(uint16_t type)
{
	static const uint16_t types[] = {
		0x0842, 0x22f0, 0x22f3, 0x22ea, FC_ETHERTYPE_RARP, 0x809b, 0x80f3, 0x8137,
		0x8808, 0x8809, 0x8847, 0x8848, 0x8863, 0x8864, 0x8870, 0x888e, 0x8892, 0x88a4,
		0x88a2, 0x88b5, 0x88b6, 0x88b7, 0x88e5, 0x88e7, 0x88f5, 0x88f6, 0x88f8, 0x88fb,
		0x8902, 0x8906, 0x8914, 0x891d, 0x892f, 0x9000, 0x6558, 0x88c7, 0x88e3,
		0x8926, 0x893f, 0x8940, 0x894f, 0x8946, 0x8899, 0x886d, 0x887b, 0x890d};

	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (types[i] == type)
			return true;
	return false;
}

static enum fc_verdict by_ethertype(struct decoding *d, uint16_t type)
{
	switch (type) {
	case FC_ETHERTYPE_IPV4:
		return decode_ipv4(d);
	case FC_ETHERTYPE_IPV6:
		return decode_ipv6(d);
	case FC_ETHERTYPE_ARP:
		return FC_ARP;
	case FC_ETHERTYPE_LLDP:
		return FC_LLDP;
	case FC_ETHERTYPE_PTP:
		return FC_PTP;
	case FC_ETHERTYPE_ROCE1:
		return FC_ROCE_OTHER;
	default:
		if (type <= 1500)
			return decode_llc(d);
		return is_registered(type) ? FC_ETHERNET_OTHER : FC_UNKNOWN;
	}
}

static enum fc_verdict decode_ethernet(struct decoding *d)
{
	const struct fc_ethernet *ethernet = fc_take(&d->c, sizeof *ethernet);

	if (!ethernet)
		return cut(d);
	uint16_t type = fc_be16(ethernet->type);
	for (int tags = 0; tags < VLAN_TAGS_MAX; tags++) {
		if (type != FC_ETHERTYPE_VLAN && type != FC_ETHERTYPE_QINQ &&
		    type != FC_ETHERTYPE_QINQ_OLD)
			break;
		const struct fc_vlan *vlan = fc_take(&d->c, sizeof *vlan);
		if (!vlan)
			return cut(d);
		d->out->flags |= FC_PACKET_VLAN;
		type = fc_be16(vlan->type);
	}
	return by_ethertype(d, type);
}

int fc_decode(const uint8_t *frame, uint32_t frame_bytes, uint32_t wire_bytes,
	      struct fc_packet *out)
{
	struct decoding d = {
		.c = {frame, frame + frame_bytes},
		.frame = frame,
		.out = out,
		.snapped = frame_bytes < wire_bytes,
	};

	memset(out, 0, sizeof *out);
	/* Offsets in marks are 16 bits wide; no frame of a slot is longer. */
	out->verdict = frame_bytes > UINT16_MAX ? FC_MALFORMED : (uint8_t)decode_ethernet(&d);
	return out->verdict;
}

int fc_icrc_right(const uint8_t *frame, const struct fc_packet *p)
{
	if (!(p->flags & FC_PACKET_ROCE))
		return 0;
	uint8_t wire[FC_ICRC_BYTES];
	memcpy(wire, frame + p->icrc_at, sizeof wire);
	/* Stored least significant byte first. */
	const uint32_t stored = (uint32_t)wire[3] << 24 | (uint32_t)wire[2] << 16 |
				(uint32_t)wire[1] << 8 | wire[0];
	if (fc_icrc(frame, p->l3_at, p->udp_at, p->bth_at, p->icrc_at) == stored)
		return 1;
	/* Who inserts a shim may mask where a BTH would lie, or where it does. */
	return p->flags & FC_PACKET_SHIM &&
	       fc_icrc(frame, p->l3_at, p->udp_at, p->udp_at + (uint32_t)sizeof(struct fc_udp),
		       p->icrc_at) == stored;
}

int fc_parse_frame_verdict(const uint8_t *frame, uint32_t frame_bytes, uint32_t wire_bytes,
			   struct fc_packet *out)
{
	fc_decode(frame, frame_bytes, wire_bytes, out);
	if (out->flags & FC_PACKET_ROCE) {
		out->flags |= FC_PACKET_ICRC_CHECKED;
		if (!fc_icrc_right(frame, out))
			out->verdict = FC_ICRC_BAD;
	}
	return out->verdict;
}
