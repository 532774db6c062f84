/* A later iteration of a job out of an earlier one: the same frames with packet numbers, addresses
 * of buffers, clear-to-sends, flags of LL128 and ICRCs as they come so many iterations later.
 * Gradients are scaled by a power of two, which changes no rounding: no two iterations are alike. */
#include <stdint.h>
#include <string.h>

enum {
	RECORD_BYTES = 16, /* pcap's, before each frame */
	IP_AT = 14, UDP_AT = 34, BTH_AT = 42, BODY_AT = 54, ICRC_BYTES = 4,
	WRITE_FIRST = 6, WRITE_LAST_IMMEDIATE = 9, WRITE_ONLY = 10, WRITE_ONLY_IMMEDIATE = 11,
	ACKNOWLEDGE = 17,
	RETH_BYTES = 16, IMMEDIATE_BYTES = 4,
	LINE_BYTES = 128, FLAG_AT = 120, WORD_BYTES = 4,
	SIMPLE = 1, LL128 = 2, CLEAR_TO_SEND = 3,
};

/* Buffers in a row of `slots`, of which an iteration goes `shift` on. */
struct bench_slots {
	uint64_t base, stride;
	uint32_t slots, shift;
};

/* What one iteration adds on one queue pair in one direction. */
struct bench_rule {
	uint8_t to[4];
	uint32_t queue_pair;
	uint32_t write_psns, ack_psns, ack_messages;
	uint32_t content; /* of its writes: SIMPLE, LL128 or CLEAR_TO_SEND */
	struct bench_slots written, granted; /* where writes go; what a clear-to-send names */
	uint64_t steps;    /* flags of LL128 count these */
	uint32_t number_at; /* of a clear-to-send in its entry */
	uint32_t numbers;
};

typedef uint32_t (*icrc_fn)(const uint8_t *, uint32_t, uint32_t, uint32_t, uint32_t);

static uint32_t big32(const uint8_t *at)
{
	return (uint32_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
}

static void add_big24(uint8_t *at, uint64_t more)
{
	const uint64_t value = ((uint64_t)at[0] << 16 | at[1] << 8 | at[2]) + more;

	at[0] = (uint8_t)(value >> 16);
	at[1] = (uint8_t)(value >> 8);
	at[2] = (uint8_t)value;
}

static uint64_t moved(const struct bench_slots *slots, uint64_t address, uint64_t times)
{
	const uint64_t slot = (address - slots->base) / slots->stride;

	return slots->base + (slot + times * slots->shift) % slots->slots * slots->stride;
}

static void scale(uint8_t *at, uint32_t bytes, uint32_t doublings)
{
	for (uint32_t n = 0; n + WORD_BYTES <= bytes; n += WORD_BYTES) {
		uint32_t word;

		memcpy(&word, at + n, sizeof word);
		word += word & 0x7f800000 ? doublings << 23 : 0; /* of zeros nothing */
		memcpy(at + n, &word, sizeof word);
	}
}

static void age_lines(uint8_t *at, uint32_t bytes, uint64_t more, uint32_t doublings)
{
	for (uint32_t n = 0; n + LINE_BYTES <= bytes; n += LINE_BYTES) {
		uint64_t flag;

		scale(at + n, FLAG_AT, doublings);
		memcpy(&flag, at + n + FLAG_AT, sizeof flag);
		flag += more;
		memcpy(at + n + FLAG_AT, &flag, sizeof flag);
	}
}

static void age_write(uint8_t *frame, uint32_t bytes, const struct bench_rule *rule, uint32_t times,
		      uint32_t doublings)
{
	const uint8_t opcode = frame[BTH_AT];
	const uint32_t pad = frame[BTH_AT + 1] >> 4 & 3;
	const uint32_t end = bytes - ICRC_BYTES - pad;
	uint32_t at = BODY_AT;

	if (opcode == WRITE_FIRST || opcode == WRITE_ONLY || opcode == WRITE_ONLY_IMMEDIATE) {
		uint64_t address;

		memcpy(&address, frame + at, sizeof address);
		address = __builtin_bswap64(moved(&rule->written, __builtin_bswap64(address), times));
		memcpy(frame + at, &address, sizeof address);
		at += RETH_BYTES;
	}
	if (opcode == WRITE_LAST_IMMEDIATE || opcode == WRITE_ONLY_IMMEDIATE)
		at += IMMEDIATE_BYTES;
	if (rule->content == SIMPLE) {
		scale(frame + at, end - at, doublings);
	} else if (rule->content == LL128) {
		age_lines(frame + at, end - at, times * rule->steps, doublings);
	} else {
		uint64_t address, number;

		memcpy(&address, frame + at, sizeof address);
		address = moved(&rule->granted, address, times);
		memcpy(frame + at, &address, sizeof address);
		memcpy(&number, frame + at + rule->number_at, sizeof number);
		number += (uint64_t)times * rule->numbers;
		memcpy(frame + at + rule->number_at, &number, sizeof number);
	}
}

/* Makes frames of `bytes` bytes of pcap records older by `times` iterations, each `period_us` long,
 * in place; gradients are doubled so many times. Returns how many frames, or -1 where one is of no
 * known queue pair. */
int64_t bench_age(uint8_t *records, uint64_t bytes, const struct bench_rule *rules, uint32_t count,
		  uint32_t times, uint32_t doublings, uint64_t period_us, void *icrc)
{
	int64_t frames = 0;

	for (uint64_t at = 0; at < bytes; frames++) {
		uint32_t head[4], sum;
		const struct bench_rule *rule = rules;

		memcpy(head, records + at, sizeof head);
		const uint64_t us = head[0] * 1000000ull + head[1] + times * period_us;
		head[0] = (uint32_t)(us / 1000000);
		head[1] = (uint32_t)(us % 1000000);
		memcpy(records + at, head, sizeof head);
		uint8_t *frame = records + at + RECORD_BYTES;
		while (rule < rules + count && (memcmp(rule->to, frame + IP_AT + 16, 4) ||
						rule->queue_pair != big32(frame + BTH_AT + 4)))
			rule++;
		if (rule == rules + count)
			return -1;
		if (frame[BTH_AT] == ACKNOWLEDGE) {
			add_big24(frame + BTH_AT + 9, (uint64_t)times * rule->ack_psns);
			add_big24(frame + BODY_AT + 1, (uint64_t)times * rule->ack_messages);
		} else {
			add_big24(frame + BTH_AT + 9, (uint64_t)times * rule->write_psns);
			age_write(frame, head[2], rule, times, doublings);
		}
		sum = ((icrc_fn)icrc)(frame, IP_AT, UDP_AT, BTH_AT, head[2] - ICRC_BYTES);
		memcpy(frame + head[2] - ICRC_BYTES, &sum, sizeof sum);
		at += RECORD_BYTES + head[2];
	}
	return frames;
}
