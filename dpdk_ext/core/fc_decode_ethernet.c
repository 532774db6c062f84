/* Ethernet to UDP: everything below RoCE, and the frames without RoCE. */
#include "fc_tunnel.h"

/* No RoCE traffic has more VLAN tags or longer extension headers; the second limit also bounds the
 * header copy for the ICRC. */
#define VLAN_TAGS_MAX 4
#define IPV6_EXTENSIONS_MAX 8
#define IPV6_EXTENSION_BYTES_MAX 256

/* RFC 3948: a key exchange has four zero bytes at the place of ESP's SPI. */
static bool is_esp(struct fc_decoding *d, uint16_t port)
{
	const uint8_t *index = port == FC_PORT_ESP ? fc_take(&d->c, 4) : NULL;

	return index && fc_be32(index);
}

static enum fc_verdict decode_udp(struct fc_decoding *d, size_t ip_payload_bytes)
{
	const struct fc_udp *udp = fc_take(&d->c, sizeof *udp);

	if (!udp)
		return fc_truncated(d);
	const uint16_t source = fc_be16(udp->source), destination = fc_be16(udp->destination);
	if (FC_UNLIKELY(destination != FC_PORT_ROCE)) {
		const bool ptp =
			destination == FC_PORT_PTP_EVENT || destination == FC_PORT_PTP_GENERAL;
		if (destination == FC_PORT_VXLAN && ip_payload_bytes >= sizeof *udp)
			return fc_decode_vxlan(d, ip_payload_bytes - sizeof *udp);
		if (destination == FC_PORT_PSP || is_esp(d, destination))
			return FC_ENCRYPTED;
		return ptp ? FC_PTP : FC_UDP_OTHER;
	}
	d->out->udp_at = fc_at(d) - (uint32_t)sizeof *udp;
	d->out->udp_source_port = source;
	if (fc_be16(udp->length) != ip_payload_bytes || ip_payload_bytes < sizeof *udp)
		return FC_MALFORMED;
	if (!fc_limit(d, ip_payload_bytes - sizeof *udp))
		return fc_truncated(d);
	return fc_decode_roce(d);
}

static enum fc_verdict by_ip_protocol(struct fc_decoding *d, uint8_t protocol, size_t payload_bytes)
{
	switch (protocol) {
	case FC_IP_UDP:
		return decode_udp(d, payload_bytes);
	case FC_IP_TCP:
		return FC_TCP;
	case FC_IP_GRE:
		return fc_decode_gre(d, payload_bytes);
	case FC_IP_ICMP:
	case FC_IP_ICMP6:
		return FC_ICMP;
	case FC_IP_ESP:
		return FC_ENCRYPTED;
	default:
		return FC_IP_OTHER;
	}
}

static enum fc_verdict decode_ipv4(struct fc_decoding *d)
{
	d->out->l3_at = fc_at(d);
	const struct fc_ipv4 *ip = fc_take(&d->c, sizeof *ip);
	if (!ip)
		return fc_truncated(d);
	const size_t header_bytes = (size_t)(ip->version_ihl & 0x0f) * 4;
	const size_t total_bytes = fc_be16(ip->total_length);
	if (ip->version_ihl >> 4 != 4 || header_bytes < sizeof *ip)
		return FC_MALFORMED;
	if (fc_be16(ip->fragment) & 0x3fff) /* more fragments, or an offset (RFC 791) */
		return FC_FRAGMENT;
	if (!fc_take(&d->c, header_bytes - sizeof *ip))
		return fc_truncated(d);
	if (total_bytes < header_bytes)
		return ip->protocol == FC_IP_UDP || ip->protocol == FC_IP_GRE
			       ? FC_MALFORMED
			       : by_ip_protocol(d, ip->protocol, 0);
	memset(d->out->key.source + 10, 0xff, 2);
	memcpy(d->out->key.source + 12, ip->source, 4);
	memset(d->out->key.destination + 10, 0xff, 2);
	memcpy(d->out->key.destination + 12, ip->destination, 4);
	return by_ip_protocol(d, ip->protocol, total_bytes - header_bytes);
}

static enum fc_verdict decode_ipv6(struct fc_decoding *d)
{
	d->out->l3_at = fc_at(d);
	const struct fc_ipv6 *ip = fc_take(&d->c, sizeof *ip);
	if (!ip)
		return fc_truncated(d);
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
			return fc_truncated(d);
		const size_t bytes = 8 + 8 * (size_t)extension->length;
		skipped += bytes;
		if (left < bytes)
			return FC_MALFORMED;
		if (skipped > IPV6_EXTENSION_BYTES_MAX)
			return FC_IP_OTHER;
		if (!fc_take(&d->c, bytes - sizeof *extension))
			return fc_truncated(d);
		left -= bytes;
		next = extension->next;
	}
	return FC_IP_OTHER;
}

enum fc_verdict fc_decode_ip(struct fc_decoding *d, uint16_t type)
{
	return type == FC_ETHERTYPE_IPV4 ? decode_ipv4(d) : decode_ipv6(d);
}

static enum fc_verdict decode_llc(struct fc_decoding *d)
{
	const uint8_t *llc = fc_take(&d->c, 3);

	if (!llc)
		return fc_truncated(d);
	if (fc_be24(llc) == FC_LLC_STP)
		return FC_STP;
	/* Cisco's per-VLAN spanning tree: SNAP, OUI 00000c, type 010b */
	const uint8_t *snap = fc_be24(llc) == FC_LLC_SNAP ? fc_take(&d->c, 5) : NULL;
	return snap && fc_be24(snap) == 0x00000c && fc_be16(snap + 3) == 0x010b ? FC_STP
										: FC_LLC_OTHER;
}

/* Registered EtherTypes (IEEE) that occur in data centres and carry no RoCE: WoL, Wake, TRILL,
 * RARP, AppleTalk, IPX, flow control/PFC, slow protocols, MPLS, PPPoE, jumbo LLC, EAPOL, Profinet,
 * EtherCAT, AoE, experiments, PBB, MVRP, MMRP, AVTP, NCSI, PRP, CFM, FCoE, FIP, TTEthernet, HSR,
 * loopback, TEB, BPQ. */
static bool is_registered(uint16_t type)
{
	static const uint16_t types[] = { 0x0842, 0x22f0, 0x22f3, 0x22ea, FC_ETHERTYPE_RARP,
					  0x809b, 0x80f3, 0x8137, 0x8808, 0x8809,
					  0x8847, 0x8848, 0x8863, 0x8864, 0x8870,
					  0x888e, 0x8892, 0x88a4, 0x88a2, 0x88b5,
					  0x88b6, 0x88b7, 0x88e7, 0x88f5, 0x88f6,
					  0x88f8, 0x88fb, 0x8902, 0x8906, 0x8914,
					  0x891d, 0x892f, 0x9000, 0x6558, 0x88c7,
					  0x88e3, 0x8926, 0x893f, 0x8940, 0x894f,
					  0x8946, 0x8899, 0x886d, 0x887b, 0x890d };

	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (types[i] == type)
			return true;
	return false;
}

static enum fc_verdict by_ethertype(struct fc_decoding *d, uint16_t type)
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
	case FC_ETHERTYPE_MACSEC:
		return FC_ENCRYPTED;
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

enum fc_verdict fc_decode_ethernet(struct fc_decoding *d)
{
	const struct fc_ethernet *ethernet = fc_take(&d->c, sizeof *ethernet);

	if (!ethernet)
		return fc_truncated(d);
	uint16_t type = fc_be16(ethernet->type);
	for (int tags = 0; tags < VLAN_TAGS_MAX; tags++) {
		if (type != FC_ETHERTYPE_VLAN && type != FC_ETHERTYPE_QINQ &&
		    type != FC_ETHERTYPE_QINQ_OLD)
			break;
		const struct fc_vlan *vlan = fc_take(&d->c, sizeof *vlan);
		if (!vlan)
			return fc_truncated(d);
		d->out->flags |= FC_PACKET_VLAN;
		d->out->network &= ~(0xfffull << FC_NETWORK_VLAN_SHIFT);
		d->out->network |= (fc_be16(vlan->tci) & 0xfffull) << FC_NETWORK_VLAN_SHIFT;
		type = fc_be16(vlan->type);
	}
	return by_ethertype(d, type);
}
