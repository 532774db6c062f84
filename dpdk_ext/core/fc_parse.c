#include "fc_decoding.h"
#include "fc_icrc.h"
#include "fc_nccl.h"

_Static_assert(sizeof(struct fc_parse_counters) / 8 == FC_VERDICTS + 9,
	       "one counter per verdict, then the nine beside them");
_Static_assert(offsetof(struct fc_parse_counters, unknown_frames) == FC_UNKNOWN * 8,
	       "counters stand in the order of their verdicts");
_Static_assert(offsetof(struct fc_parse_counters, icrc_bad_frames) == FC_ICRC_BAD * 8,
	       "counters stand in the order of their verdicts");
_Static_assert(sizeof(struct fc_flow_key) == 40, "keys are compared as five words");

/* Shorter frames are decoded header by header: up to here the headers of a write over IPv6 are
 * there, whatever the frame says of its lengths. */
#define PLAIN_BYTES_MIN                                                                            \
	(sizeof(struct fc_ethernet) + sizeof(struct fc_ipv6) + sizeof(struct fc_udp) +             \
	 sizeof(struct fc_bth))

/* Pads to whole words: the low bits of the pad count give the bytes to remove. */
static inline bool take_payload(struct fc_decoding *d, const struct fc_bth *bth)
{
	const size_t left = fc_left(&d->c), pad = bth->flags >> 4 & 3;

	if (left & 3 || left < pad || left - pad > FC_PMTU_MAX)
		return false;
	d->out->payload_at = (uint16_t)fc_at(d);
	d->out->payload_bytes = (uint16_t)(left - pad);
	if (left - pad >= sizeof(struct fc_ll_line))
		fc_note_line(d->out, d->c.pos);
	return true;
}

static bool is_pmtu(uint32_t bytes)
{
	return bytes >= FC_PMTU_MIN && bytes <= FC_PMTU_MAX && !(bytes & (bytes - 1));
}

/* IB 9.4.1, 9.7.4: First and Middle carry exactly the path MTU, Last 1 to that, Only what its RETH
 * says. fc_message.c checks against the flow's own path MTU. */
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

static bool take_reth(struct fc_decoding *d)
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

static enum fc_verdict decode_write(struct fc_decoding *d, const struct fc_bth *bth)
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

/* Only SENDs with invalidate have the key in their last header (IETH, IB 9.2.6). */
static enum fc_verdict decode_send(struct fc_decoding *d, const struct fc_bth *bth)
{
	struct fc_packet *out = d->out;

	if (fc_send_has_word(bth->opcode)) {
		const struct fc_immdt *word = fc_take(&d->c, sizeof *word);
		if (!word)
			return FC_MALFORMED;
		if (bth->opcode <= FC_RC_SEND_ONLY_IMM) {
			out->immediate = fc_be32(word->data);
			out->flags |= FC_PACKET_IMMEDIATE;
		}
	}
	if (!take_payload(d, bth))
		return FC_MALFORMED;
	if (!fc_send_ends(bth->opcode))
		return is_pmtu(out->payload_bytes) ? FC_SEND : FC_MALFORMED;
	return out->payload_bytes || fc_send_starts(bth->opcode) ? FC_SEND : FC_MALFORMED;
}

static enum fc_verdict decode_ack(struct fc_decoding *d)
{
	const struct fc_aeth *aeth = fc_take(&d->c, sizeof *aeth);

	if (!aeth)
		return FC_MALFORMED;
	d->out->syndrome = aeth->syndrome;
	d->out->msn = fc_be24(aeth->msn);
	/* IB 9.7.5.2.1: 0 is ACK, 1 RNR NAK, 3 NAK */
	return aeth->syndrome & 0x60 ? FC_NAK : FC_ACK;
}

static enum fc_verdict decode_ud(struct fc_decoding *d)
{
	if (!fc_take(&d->c, sizeof(struct fc_deth)))
		return FC_MALFORMED;
	return d->out->key.dest_qp <= 1 ? FC_MAD : FC_UD;
}

static enum fc_verdict by_opcode(struct fc_decoding *d, const struct fc_bth *bth)
{
	const uint8_t opcode = bth->opcode;

	if (fc_is_write(opcode))
		return decode_write(d, bth);
	if (opcode == FC_RC_ACK)
		return decode_ack(d);
	if (fc_is_send(opcode))
		return decode_send(d, bth);
	if (opcode == FC_RC_READ_REQUEST)
		return take_reth(d) && d->out->length_bytes <= FC_MESSAGE_BYTES_MAX ? FC_READ
										    : FC_MALFORMED;
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

enum fc_verdict fc_decode_roce(struct fc_decoding *d)
{
	struct fc_packet *out = d->out;

	out->bth_at = fc_at(d);
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
	out->key.partition = fc_be16(bth->pkey) & 0x7fff; /* IB 10.9.3 */
	out->psn = fc_be24(bth->psn);
	if (bth->flags & 0x0f) /* IB 9.2.5: transport version 0 is the only one */
		return FC_ROCE_OTHER;
	const enum fc_verdict verdict = by_opcode(d, bth);
	return out->flags & FC_PACKET_SHIM && verdict != FC_WRITE ? FC_SHIM : verdict;
}

/* Bytes of the IP header if it has no options and no extensions and UDP follows it directly behind
 * Ethernet without tags; else 0. */
static uint32_t plain_ip_bytes(const uint8_t *frame)
{
	const uint8_t *ip = frame + sizeof(struct fc_ethernet);
	const uint16_t type = fc_be16(ip - 2);

	if (type == FC_ETHERTYPE_IPV6)
		return ip[0] >> 4 == 6 && ip[offsetof(struct fc_ipv6, next)] == FC_IP_UDP
			       ? sizeof(struct fc_ipv6)
			       : 0;
	if (type != FC_ETHERTYPE_IPV4 || ip[0] != 0x45 ||
	    ip[offsetof(struct fc_ipv4, protocol)] != FC_IP_UDP ||
	    fc_be16(ip + offsetof(struct fc_ipv4, fragment)) & 0x3fff)
		return 0;
	return sizeof(struct fc_ipv4);
}

/* A write whose headers lie directly one behind the other: Ethernet, IP, UDP and BTH. */
struct plain_write {
	const uint8_t *ip;
	const struct fc_udp *udp;
	const struct fc_bth *bth;
	uint32_t ip_bytes, udp_at, icrc_at;
};

/* False: it is another frame, or one whose lengths contradict each other. */
static inline bool find_plain_write(const uint8_t *frame, uint32_t frame_bytes,
				    struct plain_write *w)
{
	if (frame_bytes < PLAIN_BYTES_MIN || frame_bytes > UINT16_MAX)
		return false;
	w->ip = frame + sizeof(struct fc_ethernet);
	w->ip_bytes = plain_ip_bytes(frame);
	w->udp_at = (uint32_t)sizeof(struct fc_ethernet) + w->ip_bytes;
	w->udp = (const struct fc_udp *)(frame + w->udp_at);
	w->bth = (const struct fc_bth *)(w->udp + 1);
	if (!w->ip_bytes || fc_be16(w->udp->destination) != FC_PORT_ROCE ||
	    !fc_is_write(w->bth->opcode) || w->bth->flags & 0x0f)
		return false;
	const uint32_t udp_bytes = fc_be16(w->udp->length);
	const uint32_t told =
		w->ip_bytes == sizeof(struct fc_ipv6)
			? fc_be16(((const struct fc_ipv6 *)w->ip)->payload_length)
			: fc_be16(((const struct fc_ipv4 *)w->ip)->total_length) - w->ip_bytes;
	w->icrc_at = w->udp_at + udp_bytes - FC_ICRC_BYTES;
	return told == udp_bytes && w->udp_at + udp_bytes <= frame_bytes &&
	       udp_bytes >= sizeof *w->udp + sizeof *w->bth + FC_ICRC_BYTES;
}

/* What fc_decode_ethernet() comes to for a plain write, without its branches. */
static enum fc_verdict decode_plain_write(const uint8_t *frame, const struct plain_write *w,
					  struct fc_packet *out)
{
	*out = (struct fc_packet){
		.key = { .dest_qp = fc_be32(&w->bth->ecn) & 0xffffff,
			 .partition = fc_be16(w->bth->pkey) & 0x7fff },
		.network = fc_network(FC_NETWORK_SEEN, 0),
		.psn = fc_be32(&w->bth->ack_req) & 0xffffff,
		.l3_at = sizeof(struct fc_ethernet),
		.udp_at = w->udp_at,
		.bth_at = w->udp_at + (uint32_t)sizeof *w->udp,
		.icrc_at = w->icrc_at,
		.udp_source_port = fc_be16(w->udp->source),
		.opcode = w->bth->opcode,
		.flags = FC_PACKET_ROCE,
	};
	if (w->ip_bytes == sizeof(struct fc_ipv6)) {
		memcpy(out->key.source, ((const struct fc_ipv6 *)w->ip)->source, 16);
		memcpy(out->key.destination, ((const struct fc_ipv6 *)w->ip)->destination, 16);
	} else {
		memset(out->key.source + 10, 0xff, 2);
		memcpy(out->key.source + 12, ((const struct fc_ipv4 *)w->ip)->source, 4);
		memset(out->key.destination + 10, 0xff, 2);
		memcpy(out->key.destination + 12, ((const struct fc_ipv4 *)w->ip)->destination, 4);
	}
	struct fc_decoding d = {
		.c = { (const uint8_t *)(w->bth + 1), frame + w->icrc_at },
		.frame = frame,
		.out = out,
	};
	if (FC_LIKELY(w->bth->opcode == FC_RC_WRITE_MIDDLE))
		return take_payload(&d, w->bth) && sizes_agree(out) ? FC_WRITE : FC_MALFORMED;
	return decode_write(&d, w->bth);
}

int fc_decode(const uint8_t *frame, uint32_t frame_bytes, uint32_t wire_bytes,
	      struct fc_packet *out)
{
	struct plain_write w;

	if (FC_LIKELY(find_plain_write(frame, frame_bytes, &w))) {
		out->verdict = (uint8_t)decode_plain_write(frame, &w, out);
		return out->verdict;
	}
	struct fc_decoding d = {
		.c = { frame, frame + frame_bytes },
		.frame = frame,
		.out = out,
		.snapped = frame_bytes < wire_bytes,
	};

	memset(out, 0, sizeof *out);
	out->network = fc_network(FC_NETWORK_SEEN, 0);
	/* Offsets in marks have 16 bits; no frame in a slot is longer. */
	out->verdict = frame_bytes > UINT16_MAX ? FC_MALFORMED : (uint8_t)fc_decode_ethernet(&d);
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
	/* The device that inserts a shim may mask the place where a BTH would be, or where it is.
	 */
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
