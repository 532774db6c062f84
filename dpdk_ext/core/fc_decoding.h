/* State while a frame is decoded, shared by fc_decode_ethernet.c (Ethernet to UDP) and fc_parse.c
 * (BTH to ICRC). */
#ifndef FC_DECODING_H
#define FC_DECODING_H

#include "fc_nccl.h"
#include "fc_parse.h"
#include "fc_roce.h"

struct fc_decoding {
	struct fc_cursor c;
	const uint8_t *frame;
	struct fc_packet *out;
	bool snapped;     /* truncated by the capture */
	unsigned tunnels; /* number of tunnels so far */
};

static inline uint32_t fc_at(const struct fc_decoding *d)
{
	return (uint32_t)(d->c.pos - d->frame);
}

static inline enum fc_verdict fc_truncated(const struct fc_decoding *d)
{
	return d->snapped ? FC_SNAPPED : FC_MALFORMED;
}

/* Ends the cursor at a length field; the rest is link padding. */
static inline bool fc_limit(struct fc_decoding *d, size_t bytes)
{
	if (fc_left(&d->c) < bytes)
		return false;
	d->c.end = d->c.pos + bytes;
	return true;
}

static inline uint64_t fc_network(unsigned kind, uint32_t number)
{
	return (uint64_t)(kind | FC_NETWORK_SEEN) << FC_NETWORK_KIND_SHIFT | number;
}

/* Notes the flag of an LL line that `payload` may begin with. */
static inline void fc_note_line(struct fc_packet *out, const uint8_t *payload)
{
	struct fc_ll_line line;

	memcpy(&line, payload, sizeof line);
	if (line.flag1 == line.flag2 && line.flag1) {
		out->line_flag = line.flag1;
		out->flags |= FC_PACKET_LINE_FLAG;
	}
}

/* All return the verdict and write fields to d->out. */
enum fc_verdict fc_decode_ethernet(struct fc_decoding *d);
enum fc_verdict fc_decode_ip(struct fc_decoding *d, uint16_t type);
enum fc_verdict fc_decode_roce(struct fc_decoding *d);

#endif
