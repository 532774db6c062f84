#include "sender.h"

#include <string.h>
#include <zlib.h>

enum {
	AT_IP = 14,
	AT_UDP = AT_IP + 20,
	AT_BTH = AT_UDP + 8,
	FIRST = 0x06,
	MIDDLE = 0x07,
	LAST_IMM = 0x09,
	ONLY_IMM = 0x0b,
};

static const uint32_t data_bytes[SENDER_MESSAGES] = { 768, 512, 304, 128 };
/* The third message of a step is a partial sum; the others are placed, in halves that
 * change places. */
static const bool placed[SENDER_MESSAGES] = { true, true, false, true };

uint32_t sender_data_bytes(uint32_t nth)
{
	return data_bytes[nth];
}

uint32_t sender_home(uint32_t flow, uint32_t nth, uint32_t at)
{
	const uint32_t half = data_bytes[nth] / 2;
	uint32_t home = flow * SENDER_PART_BYTES;

	for (uint32_t i = 0; i < nth; i++)
		home += placed[i] ? data_bytes[i] : 0;
	return home + (at < half ? at + half : at - half);
}

uint8_t sender_byte(uint32_t step, uint32_t home)
{
	uint32_t mixed = (step * 0x9e3779b9u) ^ (home * 0x85ebca6bu);

	mixed ^= mixed >> 15;
	mixed *= 0xc2b2ae35u;
	return (uint8_t)(mixed >> 24 | 1);
}

static void put(uint8_t *at, uint64_t value, int bytes)
{
	while (bytes--) {
		at[bytes] = (uint8_t)value;
		value >>= 8;
	}
}

/* A17.3.3: eight bytes of ones, then IP, UDP, BTH and the rest, with what routers change as ones. */
void sender_sum(uint8_t *frame, uint32_t bytes)
{
	uint8_t masked[8 + 20 + 8 + 12];

	memset(masked, 0xff, 8);
	memcpy(masked + 8, frame + AT_IP, sizeof masked - 8);
	masked[8 + 1] = masked[8 + 8] = 0xff;           /* TOS, TTL */
	masked[8 + 10] = masked[8 + 11] = 0xff;         /* IP checksum */
	masked[8 + 20 + 6] = masked[8 + 20 + 7] = 0xff; /* UDP checksum */
	masked[8 + 20 + 8 + 4] = 0xff;                  /* BTH: FECN, BECN, reserved */
	uLong crc = crc32(crc32(0, NULL, 0), masked, sizeof masked);
	crc = crc32(crc, frame + AT_BTH + 12, bytes - 4 - AT_BTH - 12);
	for (int i = 0; i < 4; i++)
		frame[bytes - 4 + (uint32_t)i] = (uint8_t)(crc >> 8 * i);
}

static uint32_t put_headers(uint8_t *frame, uint32_t number, uint32_t payload_bytes,
			    const struct sender_packet *p, uint32_t rkey, uint64_t va,
			    uint32_t length)
{
	const bool starts = p->opcode == FIRST || p->opcode == ONLY_IMM;
	const bool ends = p->opcode == LAST_IMM || p->opcode == ONLY_IMM;
	const uint32_t udp_bytes =
		8 + 12 + (starts ? 16 : 0) + (ends ? 4 : 0) + ((payload_bytes + 3) & ~3u) + 4;
	uint8_t *ip = frame + AT_IP, *udp = frame + AT_UDP, *at = frame + AT_BTH;

	frame[5] = 2;
	frame[11] = 1;
	put(frame + 12, 0x0800, 2);
	ip[0] = 0x45;
	put(ip + 2, 20 + udp_bytes, 2);
	ip[8] = 64;
	ip[9] = 17;
	put(ip + 12, 0x0a000001, 4);
	put(ip + 16, 0x0a000002, 4);
	put(udp, 50000 + number, 2);
	put(udp + 2, 4791, 2);
	put(udp + 4, udp_bytes, 2);
	at[0] = p->opcode;
	at[1] = (uint8_t)(0x40 | (-payload_bytes & 3) << 4);
	put(at + 2, 0xffff, 2);
	put(at + 5, 7 + number, 3);
	put(at + 9, p->psn, 3);
	at += 12;
	if (starts) {
		put(at, va, 8);
		put(at + 8, rkey, 4);
		put(at + 12, length, 4);
		at += 16;
	}
	if (ends) {
		for (int i = 0; i < 4; i++) /* NCCL: the size, as its host has it */
			at[i] = (uint8_t)(length >> 8 * i);
		at += 4;
	}
	return (uint32_t)(at - frame);
}

static void add_packet(struct sender_flow *flow, uint32_t number, uint32_t step, uint64_t va,
		       const uint8_t *message, uint32_t length, uint32_t at)
{
	const uint32_t left = length - at;
	struct sender_packet *p = &flow->packet[flow->packets];

	p->payload_bytes = left < SENDER_PMTU ? left : SENDER_PMTU;
	p->step = (uint8_t)step;
	p->psn = (flow->first_psn + flow->packets++) & 0xffffff;
	if (at)
		p->opcode = left <= SENDER_PMTU ? LAST_IMM : MIDDLE;
	else
		p->opcode = left <= SENDER_PMTU ? ONLY_IMM : FIRST;
	const uint32_t payload_at =
		put_headers(p->frame, number, p->payload_bytes, p, flow->rkey, va, length);
	memcpy(p->frame + payload_at, message + at, p->payload_bytes);
	p->bytes = payload_at + ((p->payload_bytes + 3) & ~3u) + 4;
	sender_sum(p->frame, p->bytes);
}

static uint32_t fill_message(const struct sender_flow *flow, uint32_t number, uint32_t step,
			     uint32_t nth, uint32_t flag, uint8_t *out)
{
	uint32_t bytes = 0;

	for (uint32_t at = 0; at < data_bytes[nth]; at++) {
		out[bytes++] = placed[nth] ? sender_byte(step, sender_home(number, nth, at))
					   : (uint8_t)(at * 7 + step);
		if (flow->lines && bytes % 8 == 4) {
			memcpy(out + bytes, &flag, 4);
			bytes += 4;
		}
	}
	return bytes;
}

void sender_make(struct sender_flow *flow, uint32_t number, bool lines, uint32_t first_psn)
{
	uint8_t message[2 * 768];
	uint32_t sent = 0;

	flow->lines = lines;
	flow->first_psn = first_psn;
	flow->qp = 7 + number;
	flow->rkey = 0x1000 + number;
	flow->packets = 0;
	for (uint32_t step = 1; step <= SENDER_STEPS; step++)
		for (uint32_t nth = 0; nth < SENDER_MESSAGES; nth++) {
			const uint32_t length =
				fill_message(flow, number, step, nth, sent + 1, message);
			const uint64_t va = 0x7f0000000000ull + 0x10000ull * (sent++ % 8);
			for (uint32_t at = 0; at < length; at += SENDER_PMTU)
				add_packet(flow, number, step, va, message, length, at);
		}
}
