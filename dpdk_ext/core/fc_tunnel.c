/* Encapsulation of mirrored frames: GRE (plain, with Ethernet, ERSPAN I to III) and VXLAN. RFC
 * 2784 and 2890 (GRE), RFC 7348 (VXLAN), draft-foschiano-erspan-03 (ERSPAN). */
#include "fc_tunnel.h"

/* A copy of a frame that was in a tunnel itself; deeper nesting is not used. */
#define TUNNELS_MAX 2

enum gre {
	GRE_CHECKSUM = 0x8000,
	GRE_ROUTING = 0x4000,
	GRE_KEY = 0x2000,
	GRE_SEQUENCE = 0x1000,
	GRE_VERSION = 0x0007,
};

enum gre_protocol {
	GRE_ERSPAN_III = 0x22eb,
	GRE_ETHERNET = 0x6558,
	GRE_ERSPAN = 0x88be,   /* type II with a sequence number, type I without */
	GRE_MELLANOX = 0x8949, /* protocol number of SONiC's mirrors: as type I */
};

enum erspan {
	ERSPAN_II_VERSION = 1,
	ERSPAN_III_VERSION = 2,
	ERSPAN_II_BYTES = 8,
	ERSPAN_III_BYTES = 12,
	ERSPAN_III_PLATFORM_BYTES = 8,
	ERSPAN_TRUNCATED = 0x0400,
	ERSPAN_FRAME_TYPE = 0x7c, /* mask in the last but one byte */
	ERSPAN_PLATFORM = 0x01,   /* in the last byte: a subheader follows */
};

/* `network`: tenant network of the inner frame, as the tunnel states it. Tags and tunnels around
 * it belong to the underlay or the mirror and are dropped. */
static bool enter(struct fc_decoding *d, uint64_t network, enum fc_tunnel_kind kind)
{
	if (d->tunnels == TUNNELS_MAX)
		return false;
	if (!d->tunnels++)
		d->out->tunnel = (uint8_t)kind;
	d->out->flags |= FC_PACKET_ENCAPSULATED;
	d->out->network = network;
	/* Addresses of the tunnel are not part of the flow; IPv4 needs the zeros. */
	memset(&d->out->key, 0, sizeof d->out->key);
	return true;
}

/* The content ends where the tunnel's packet ends; the rest is link padding. */
static void end_within(struct fc_decoding *d, size_t bytes)
{
	if (fc_left(&d->c) > bytes)
		d->c.end = d->c.pos + bytes;
}

static enum fc_verdict inner_ethernet(struct fc_decoding *d, uint64_t network,
				      enum fc_tunnel_kind kind)
{
	return enter(d, network, kind) ? fc_decode_ethernet(d) : FC_IP_OTHER;
}

static enum fc_verdict decode_erspan(struct fc_decoding *d, unsigned version, size_t bytes)
{
	const uint8_t *header = fc_take(&d->c, bytes);

	if (!header)
		return fc_truncated(d);
	if (header[0] >> 4 != version)
		return FC_IP_OTHER;
	if (fc_be16(header + 2) & ERSPAN_TRUNCATED)
		d->snapped = true;
	if (version == ERSPAN_III_VERSION) {
		if (header[10] & ERSPAN_FRAME_TYPE)
			return FC_IP_OTHER; /* not an Ethernet frame */
		if (header[11] & ERSPAN_PLATFORM && !fc_take(&d->c, ERSPAN_III_PLATFORM_BYTES))
			return fc_truncated(d);
	}
	return inner_ethernet(d, fc_network(FC_NETWORK_SEEN, 0),
			      version == ERSPAN_III_VERSION ? FC_TUNNEL_ERSPAN_III
							    : FC_TUNNEL_ERSPAN_II);
}

/* RFC 7637: with an Ethernet frame the upper 24 bits of the key are the tenant, the others spread
 * its flows over paths. Without a key it is a mirror. */
static uint64_t network_of_key(const uint8_t *key)
{
	return key ? fc_network(FC_NETWORK_NVGRE, fc_be24(key)) : fc_network(FC_NETWORK_SEEN, 0);
}

enum fc_verdict fc_decode_gre(struct fc_decoding *d, size_t payload_bytes)
{
	const uint8_t *gre = fc_take(&d->c, 4);

	if (!gre)
		return fc_truncated(d);
	const unsigned flags = fc_be16(gre), protocol = fc_be16(gre + 2);
	if (flags & (GRE_ROUTING | GRE_VERSION))
		return FC_IP_OTHER;
	const size_t options = 4 * (size_t)(!!(flags & GRE_CHECKSUM) + !!(flags & GRE_KEY) +
					    !!(flags & GRE_SEQUENCE));
	if (payload_bytes < 4 + options)
		return FC_MALFORMED;
	end_within(d, payload_bytes - 4);
	const uint8_t *taken = fc_take(&d->c, options);
	if (!taken)
		return fc_truncated(d);
	const uint8_t *key = flags & GRE_KEY ? taken + 4 * !!(flags & GRE_CHECKSUM) : NULL;
	switch (protocol) {
	case GRE_ERSPAN:
		if (flags & GRE_SEQUENCE)
			return decode_erspan(d, ERSPAN_II_VERSION, ERSPAN_II_BYTES);
		return inner_ethernet(d, fc_network(FC_NETWORK_SEEN, 0), FC_TUNNEL_ERSPAN_I);
	case GRE_ERSPAN_III:
		return decode_erspan(d, ERSPAN_III_VERSION, ERSPAN_III_BYTES);
	case GRE_ETHERNET:
		return inner_ethernet(d, network_of_key(key), FC_TUNNEL_GRE);
	case GRE_MELLANOX:
		return inner_ethernet(d, fc_network(FC_NETWORK_SEEN, 0), FC_TUNNEL_ERSPAN_I);
	case FC_ETHERTYPE_IPV4:
	case FC_ETHERTYPE_IPV6:
		return enter(d, network_of_key(key), FC_TUNNEL_GRE)
			       ? fc_decode_ip(d, (uint16_t)protocol)
			       : FC_IP_OTHER;
	default:
		return FC_IP_OTHER;
	}
}

enum fc_verdict fc_decode_vxlan(struct fc_decoding *d, size_t payload_bytes)
{
	const uint8_t *vxlan = fc_take(&d->c, 8);

	if (!vxlan)
		return fc_truncated(d);
	if (vxlan[0] != 0x08) /* the identifier is valid, and nothing newer than RFC 7348 */
		return FC_UDP_OTHER;
	if (payload_bytes < 8)
		return FC_MALFORMED;
	end_within(d, payload_bytes - 8);
	return inner_ethernet(d, fc_network(FC_NETWORK_VXLAN, fc_be24(vxlan + 4)), FC_TUNNEL_VXLAN);
}
