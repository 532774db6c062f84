#include "fc_known_headers.h"

#include <stdlib.h>

#include "fc_decoding.h"

_Static_assert(FC_KNOWN_L3_AT + sizeof(struct fc_ipv6) + sizeof(struct fc_udp) +
			       sizeof(struct fc_bth) <=
		       8 * FC_KNOWN_WORDS,
	       "all headers are compared");
_Static_assert(8 * FC_KNOWN_WORDS <= FC_PMTU_MIN, "a packet in the middle has as many bytes");

static void look(uint8_t *at, size_t bytes)
{
	memset(at, 0xff, bytes);
}

/* What fc_parse.c reads of a plain write behind its IP header: a change there is one here. */
static void look_behind_ip(uint8_t *at)
{
	struct fc_udp *udp = (struct fc_udp *)at;
	struct fc_bth *bth = (struct fc_bth *)(udp + 1);

	look(at, offsetof(struct fc_udp, checksum));
	bth->opcode = 0xff;
	bth->flags = 0x3f; /* pad count and version */
	bth->pkey[0] = 0x7f;
	bth->pkey[1] = 0xff;
	look(bth->dest_qp, sizeof bth->dest_qp);
}

/* The same of Ethernet and IPv4. */
static void look_over_4(uint8_t *headers)
{
	struct fc_ipv4 *ip = (struct fc_ipv4 *)(headers + FC_KNOWN_L3_AT);

	look(((struct fc_ethernet *)headers)->type, 2);
	ip->version_ihl = ip->protocol = 0xff;
	look(ip->total_length, sizeof ip->total_length);
	ip->fragment[0] = 0x3f;
	ip->fragment[1] = 0xff;
	look(ip->source, sizeof ip->source + sizeof ip->destination);
	look_behind_ip((uint8_t *)(ip + 1));
}

/* The same of Ethernet and IPv6. */
static void look_over_6(uint8_t *headers)
{
	struct fc_ipv6 *ip = (struct fc_ipv6 *)(headers + FC_KNOWN_L3_AT);

	look(((struct fc_ethernet *)headers)->type, 2);
	ip->version_class_label[0] = 0xf0;
	ip->next = 0xff;
	look(ip->payload_length, sizeof ip->payload_length);
	look(ip->source, sizeof ip->source + sizeof ip->destination);
	look_behind_ip((uint8_t *)(ip + 1));
}

struct fc_known_headers *fc_known_open(void)
{
	struct fc_known_headers *known =
		aligned_alloc(FC_CACHE_LINE_BYTES, sizeof(struct fc_known_headers));

	if (!known)
		return NULL;
	memset(known, 0, sizeof *known);
	look_over_4((uint8_t *)known->looked_at[0]);
	look_over_6((uint8_t *)known->looked_at[1]);
	return known;
}

void fc_known_forget(struct fc_known_headers *known)
{
	for (int place = 0; place < FC_KNOWN_PLACES; place++)
		known->at[place].flow = NULL;
}

/* As if over IPv6 whatever is not over IPv4: what is neither, nothing known has the words of. */
static bool is_over_6(const uint8_t *frame)
{
	return fc_be16(((const struct fc_ethernet *)frame)->type) != FC_ETHERTYPE_IPV4;
}

/* By queue pair and UDP port, which tell flows apart as well as anything. The constant is that of
 * Fibonacci hashing, 2^64 divided by the golden ratio. */
static struct fc_known_packet *place_of(struct fc_known_headers *known, const uint8_t *frame,
					bool over_6)
{
	const uint8_t *udp =
		frame + FC_KNOWN_L3_AT + (over_6 ? sizeof(struct fc_ipv6) : sizeof(struct fc_ipv4));
	uint16_t port;
	uint32_t pair;

	memcpy(&port, udp, sizeof port);
	memcpy(&pair, udp + sizeof(struct fc_udp) + offsetof(struct fc_bth, ecn), sizeof pair);
	const uint64_t mixed = ((uint64_t)(pair >> 8) << 16 | port) * 0x9e3779b97f4a7c15ull;
	return &known->at[mixed >> (64 - __builtin_ctz(FC_KNOWN_PLACES))];
}

struct fc_known_packet *fc_known_find(struct fc_known_headers *known, const uint8_t *frame,
				      uint32_t frame_bytes)
{
	if (FC_UNLIKELY(frame_bytes < 8 * FC_KNOWN_WORDS))
		return NULL;
	const bool over_6 = is_over_6(frame);
	struct fc_known_packet *is = place_of(known, frame, over_6);
	const uint64_t *mask = known->looked_at[over_6];
	uint64_t words[FC_KNOWN_WORDS], differ = 0;

	memcpy(words, frame, sizeof words);
	for (int n = 0; n < FC_KNOWN_WORDS; n++)
		differ |= (words[n] & mask[n]) ^ is->words[n];
	struct fc_packet *p = &is->packet;
	if (differ || !is->flow || p->icrc_at + FC_ICRC_BYTES > frame_bytes ||
	    FC_UNLIKELY(frame_bytes > UINT16_MAX))
		return NULL;
	const struct fc_bth *bth = (const struct fc_bth *)(frame + p->bth_at);
	p->psn = fc_be32(&bth->ack_req) & 0xffffff;
	p->flags &= (uint8_t)~FC_PACKET_LINE_FLAG;
	fc_note_line(p, frame + p->payload_at);
	return is;
}

void fc_known_keep(struct fc_known_headers *known, const uint8_t *frame, const struct fc_packet *p,
		   struct fc_flow *flow)
{
	const bool over_6 = is_over_6(frame);
	const size_t ip_bytes = over_6 ? sizeof(struct fc_ipv6) : sizeof(struct fc_ipv4);

	if (p->verdict != FC_WRITE || p->opcode != FC_RC_WRITE_MIDDLE ||
	    p->l3_at != FC_KNOWN_L3_AT || p->udp_at != FC_KNOWN_L3_AT + ip_bytes ||
	    p->bth_at != p->udp_at + sizeof(struct fc_udp) ||
	    p->flags & ~(FC_PACKET_ROCE | FC_PACKET_LINE_FLAG | FC_PACKET_ICRC_CHECKED))
		return;
	struct fc_known_packet *is = place_of(known, frame, over_6);
	memcpy(is->words, frame, sizeof is->words);
	for (int n = 0; n < FC_KNOWN_WORDS; n++)
		is->words[n] &= known->looked_at[over_6][n];
	is->packet = *p;
	is->packet.flags &= (uint8_t)~FC_PACKET_ICRC_CHECKED;
	is->flow = flow;
}
