/* Length of a frame on the wire, for sources that do not report it. Not read by cffi. */
#ifndef FC_WIRE_LENGTH_H
#define FC_WIRE_LENGTH_H

#include "fc_roce.h"

/* The length from the (outer) IP header, at least `frame_bytes`: af_packet truncates long frames
 * without marking them. `seen` bytes of the frame are at `frame`. */
static inline uint32_t fc_wire_length(const uint8_t *frame, uint32_t seen, uint32_t frame_bytes)
{
	struct fc_cursor c = { frame, frame + seen };
	const struct fc_ethernet *ethernet = fc_take(&c, sizeof *ethernet);
	uint32_t bytes = sizeof *ethernet;

	if (!ethernet)
		return frame_bytes;
	uint16_t type = fc_be16(ethernet->type);
	while (type == FC_ETHERTYPE_VLAN || type == FC_ETHERTYPE_QINQ ||
	       type == FC_ETHERTYPE_QINQ_OLD) {
		const struct fc_vlan *vlan = fc_take(&c, sizeof *vlan);

		if (!vlan)
			return frame_bytes;
		type = fc_be16(vlan->type);
		bytes += sizeof *vlan;
	}
	if (type == FC_ETHERTYPE_IPV4) {
		const struct fc_ipv4 *ip = fc_take(&c, sizeof *ip);

		bytes += ip ? fc_be16(ip->total_length) : 0;
	} else if (type == FC_ETHERTYPE_IPV6) {
		const struct fc_ipv6 *ip = fc_take(&c, sizeof *ip);

		bytes += ip ? sizeof *ip + fc_be16(ip->payload_length) : 0;
	}
	return bytes > frame_bytes ? bytes : frame_bytes;
}

#endif
