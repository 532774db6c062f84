/* Copies frames into slots, with the ICRC in the same pass: the parser then needs the headers only,
 * and the payload passes through the caches of one core less. */
#include "fc_frame_copy.h"

#include "fc_copy.h"
#include "fc_icrc.h"
#include "fc_roce.h"

#define TAGS_MAX 2

/* A RoCE packet of a frame: from its IP header to its ICRC. */
struct packet {
	uint32_t l3_at, icrc_at;
};

/* Offset of the IP header behind at most TAGS_MAX VLAN tags; 0: none. */
static uint32_t find_ip(const uint8_t *frame, uint32_t frame_bytes)
{
	const struct fc_ethernet *ethernet = (const struct fc_ethernet *)frame;
	uint32_t at = sizeof *ethernet;

	if (frame_bytes < at + TAGS_MAX * sizeof(struct fc_vlan) + sizeof(struct fc_ipv6))
		return 0;
	uint16_t type = fc_be16(ethernet->type);
	for (int tags = 0;
	     tags < TAGS_MAX && (type == FC_ETHERTYPE_VLAN || type == FC_ETHERTYPE_QINQ); tags++) {
		type = fc_be16(((const struct fc_vlan *)(frame + at))->type);
		at += sizeof(struct fc_vlan);
	}
	return type == FC_ETHERTYPE_IPV4 || type == FC_ETHERTYPE_IPV6 ? at : 0;
}

/* Finds a packet with plain headers, which nearly all are: no IP options, no extension headers, no
 * tunnel. What else is wrong with it, the parser sees. */
static bool find_packet(const uint8_t *frame, uint32_t frame_bytes, struct packet *out)
{
	const uint32_t at = find_ip(frame, frame_bytes);

	if (!at)
		return false;
	const struct fc_ipv4 *four = (const struct fc_ipv4 *)(frame + at);
	const struct fc_ipv6 *six = (const struct fc_ipv6 *)(frame + at);
	const bool plain4 = four->version_ihl == 0x45 && four->protocol == FC_IP_UDP;
	const bool plain6 = four->version_ihl >> 4 == 6 && six->next == FC_IP_UDP;
	if (!plain4 && !plain6)
		return false;
	const uint32_t udp_at = at + (uint32_t)(plain4 ? sizeof *four : sizeof *six);
	const uint32_t stop =
		plain4 ? at + fc_be16(four->total_length) : udp_at + fc_be16(six->payload_length);
	const uint32_t least = udp_at + (uint32_t)(sizeof(struct fc_udp) + sizeof(struct fc_bth));
	if (stop > frame_bytes || stop < least + FC_ICRC_BYTES || frame_bytes - stop > UINT8_MAX)
		return false;
	const struct fc_udp *udp = (const struct fc_udp *)(frame + udp_at);
	*out = (struct packet){ at, stop - FC_ICRC_BYTES };
	return fc_be16(udp->destination) == FC_PORT_ROCE;
}

void fc_copy_frame(struct fc_slot *slot, uint8_t *to, const uint8_t *frame, size_t bytes,
		   bool with_icrc)
{
	struct packet found;

	slot->icrc_l3_at = slot->icrc_after = 0;
	if (!with_icrc || !find_packet(frame, slot->frame_bytes, &found)) {
		fc_copy_stream(to, frame, bytes);
		return;
	}
	const uint32_t icrc = fc_copy_with_icrc(to, frame, bytes, found.l3_at, found.icrc_at);
	const uint8_t *wire = frame + found.icrc_at;
	const uint32_t stored = (uint32_t)wire[3] << 24 | (uint32_t)wire[2] << 16 |
				(uint32_t)wire[1] << 8 | wire[0];
	if (FC_UNLIKELY(icrc != stored))
		return; /* the parser looks again */
	slot->icrc_l3_at = (uint8_t)found.l3_at;
	slot->icrc_after = (uint8_t)(slot->frame_bytes - found.icrc_at - FC_ICRC_BYTES);
}
