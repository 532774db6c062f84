/* A sender whose every packet is known beforehand: two flows that carry one gradient, step
 * by step, and what the gradient of each step must be. Written from the specification's
 * field tables (IB 9.2 to 9.4, A17), not with the parser's structs. */
#ifndef SENDER_H
#define SENDER_H

#include <stdbool.h>
#include <stdint.h>

enum {
	SENDER_FLOWS = 2,
	SENDER_STEPS = 4,
	SENDER_PMTU = 256,
	SENDER_FRAME_MAX = 14 + 20 + 8 + 12 + 16 + 4 + SENDER_PMTU + 4,
	SENDER_PACKETS_MAX = 128,
	SENDER_MESSAGES = 4, /* of a flow in a step: three that are placed, one that is not */
	SENDER_PLACED = 3,
	SENDER_PART_BYTES = 1408, /* what a flow places in a step */
	SENDER_GRADIENT_BYTES = SENDER_FLOWS * SENDER_PART_BYTES,
};

struct sender_packet {
	uint32_t bytes, psn, payload_bytes;
	uint8_t opcode;
	uint8_t step; /* from 1 */
	uint8_t frame[SENDER_FRAME_MAX];
};

struct sender_flow {
	bool lines;         /* LL, else Simple */
	uint32_t first_psn; /* 24 bit */
	uint32_t qp, rkey;
	uint32_t packets;
	struct sender_packet packet[SENDER_PACKETS_MAX];
};

/* Data bytes of message `nth` of a step, before LL doubles them. */
uint32_t sender_data_bytes(uint32_t nth);
/* Where byte `at` of placed message `nth` of a flow belongs in the gradient. */
uint32_t sender_home(uint32_t flow, uint32_t nth, uint32_t at);
/* The byte of the gradient of `step`, from 1. */
uint8_t sender_byte(uint32_t step, uint32_t home);
/* Makes all packets of one flow, whose queue pair and key follow from its number. */
void sender_make(struct sender_flow *flow, uint32_t number, bool lines, uint32_t first_psn);
/* Writes the ICRC that a frame of Ethernet, IPv4 without options and UDP must have. */
void sender_sum(uint8_t *frame, uint32_t bytes);

#endif
