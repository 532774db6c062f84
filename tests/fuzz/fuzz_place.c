/* libFuzzer from frames to the gradient. Two followed flows bring the gradient of four
 * steps; the input says in which order their packets come, which are lost, repeated or
 * late, what strangers send between them, and when parser and extractor begin again.
 *
 * The promise: a step that is complete has every byte as it was sent. A forged packet that
 * the receiver's own NIC would take for the sender's (right queue pair, right PSN, right key
 * or none, right size) is no stranger's: training itself would be wrong. Those are left out. */
#include <stdio.h>
#include <stdlib.h>

#include "chain.h"
#include "sender.h"

#define ALL_STEPS ((1u << (SENDER_STEPS + 1)) - 2)

enum action {
	NEXT_A, /* the next packets of the first flow, or the second */
	NEXT_B,
	EARLY,   /* one from ahead; it comes again in its turn */
	LATE,    /* one that came before, or was left out */
	SKIP,    /* some never come */
	FORGE,   /* one with other bytes and a right ICRC */
	FRAME,   /* any bytes */
	CONTROL, /* what the services do */
	ACTIONS,
};

struct input {
	const uint8_t *at, *stop;
};

static struct sender_flow senders[SENDER_FLOWS];
static uint32_t cursor[SENDER_FLOWS];
static uint32_t highest[SENDER_FLOWS]; /* one past the furthest packet that came */
static uint64_t now_ns;
static unsigned complete; /* steps, a bit each */
static bool honest;       /* nothing was lost or forged */

static uint8_t take(struct input *in)
{
	return in->at < in->stop ? *in->at++ : 0;
}

/* Each final message in two halves that change places; the third of a step is a partial sum. */
static void install_plan(uint32_t number)
{
	struct fc_send sends[SENDER_MESSAGES];
	struct fc_segment segments[2 * SENDER_PLACED];
	uint32_t used = 0;

	for (uint32_t nth = 0; nth < SENDER_MESSAGES; nth++) {
		const uint32_t bytes = sender_data_bytes(nth);
		const bool final = nth != 2;
		sends[nth] = (struct fc_send){
			.wire_bytes = bytes * (senders[number].lines ? 2 : 1),
			.first_segment = used,
			.segments = final ? 2 : 0,
			.protocol = senders[number].lines ? FC_PROTOCOL_LL : FC_PROTOCOL_SIMPLE,
			.kind = final ? FC_SEND_FINAL : FC_SEND_PARTIAL,
		};
		for (uint32_t from = 0; final && from < bytes; from += bytes / 2)
			segments[used++] = (struct fc_segment){ from, bytes / 2,
								sender_home(number, nth, from) };
	}
	const struct fc_flow_plan plan = {
		.state = FC_PLAN_ACTIVE,
		.first_step = 1,
		.first_sends = SENDER_MESSAGES,
		.each_sends = SENDER_MESSAGES,
		.flag_offset = 1,
		.frontier = number,
		.stride = 1,
		.second_at = UINT64_MAX,
		/* Only what begins at PSN 0 is counted from its start. */
		.run_psn =
			senders[number].first_psn ? FC_PSN_ORIGIN + senders[number].first_psn : 0,
	};
	for (uint32_t flow = 0; flow < fc_flows_used(&flows); flow++)
		if (flows.flows[flow].key.dest_qp == senders[number].qp &&
		    !flows.flows[flow].incarnation && staging.plans[flow].state == FC_PLAN_UNKNOWN)
			demand(!fc_plan_install(extractor, flow, &plan, sends, SENDER_MESSAGES,
						segments, used),
			       "a plan fits");
}

static void check_step(uint32_t generation, uint64_t step)
{
	const uint8_t *data = fc_shard_data(&shard, generation);

	for (uint32_t home = 0; home < SENDER_GRADIENT_BYTES; home++)
		if (data[home] != sender_byte((uint32_t)step, home)) {
			fprintf(stderr, "step %u, byte %u: %02x, sent was %02x\n", (unsigned)step,
				home, data[home], sender_byte((uint32_t)step, home));
			demand(false, "a complete step has the bytes that were sent");
		}
	complete |= 1u << step;
}

/* Whole steps are checked and applied, in order; generations are opened for the next two. */
static void turn_generations(void)
{
	for (uint32_t i = 0; i < FC_GENERATIONS; i++) {
		const uint64_t applied = fc_shard_applied(&shard);
		struct fc_generation *g = &shard.header->generations[i];
		if (g->state != FC_GENERATION_EMPTY && g->step <= SENDER_STEPS &&
		    fc_shard_finish(&shard, i))
			check_step(i, g->step);
		if (g->state == FC_GENERATION_COMPLETE && g->step == applied + 1)
			fc_shard_apply(&shard, g->step);
	}
	for (uint64_t step = fc_shard_applied(&shard) + 1, end = step + 2; step < end; step++)
		for (uint32_t i = 0; i < FC_GENERATIONS; i++) {
			const struct fc_generation *g = &shard.header->generations[i];
			const struct fc_generation *other = &shard.header->generations[1 - i];
			if (g->step == step || (other->step == step && other->state))
				break;
			if (!g->state || g->step <= fc_shard_applied(&shard)) {
				fc_shard_begin(&shard, i, step);
				break;
			}
		}
}

static int by_number(const void *a, const void *b)
{
	const struct fc_message *x = &staging.records[*(const uint32_t *)a].message;
	const struct fc_message *y = &staging.records[*(const uint32_t *)b].message;

	return x->number < y->number ? -1 : x->number > y->number;
}

/* What is staged gets the home its plan has by now, in the order of numbers. */
static void place_staged(void)
{
	uint32_t waiting[64], count = 0;

	for (uint32_t i = 0; i < staging.header->records_used && count < 64; i++)
		if (staging.records[i].state) {
			fc_staged_refresh(extractor, i);
			waiting[count++] = i;
		}
	qsort(waiting, count, sizeof *waiting, by_number);
	for (uint32_t i = 0; i < count; i++)
		if (staging.plans[staging.records[waiting[i]].message.flow].state)
			(void)fc_staged_place(extractor, waiting[i], UINT64_MAX);
}

static void serve(uint64_t limit)
{
	while (fc_parse_span(parser, limit))
		for (uint32_t i = 0; i < SENDER_FLOWS; i++)
			install_plan(i);
	while (fc_extract_span(extractor, limit))
		turn_generations();
	place_staged();
	turn_generations();
}

static void put_frame(const uint8_t *frame, uint32_t bytes)
{
	now_ns += 1000;
	if (!chain_put(frame, bytes, now_ns)) {
		serve(SLOTS);
		demand(chain_put(frame, bytes, now_ns), "a ring that was served has room");
	}
}

static void put_packet(uint32_t flow, uint32_t nth)
{
	const struct sender_packet *p = &senders[flow].packet[nth];

	put_frame(p->frame, p->bytes);
	if (nth >= highest[flow])
		highest[flow] = nth + 1;
}

/* Would the receiver's NIC take it for what the sender sends at that PSN? */
static bool passes_for_the_senders(const struct fc_packet *p)
{
	if (p->verdict != FC_WRITE && p->verdict != FC_SEND && p->verdict != FC_READ &&
	    p->verdict != FC_ATOMIC && p->verdict != FC_NAK)
		return false;
	for (uint32_t flow = 0; flow < SENDER_FLOWS; flow++) {
		const struct sender_flow *s = &senders[flow];
		const uint32_t nth = (p->psn - s->first_psn) & 0xffffff;
		if (p->key.dest_qp != s->qp || p->verdict == FC_NAK)
			continue;
		/* A key that was never seen is believed where the next packet belongs. */
		if (p->flags & FC_PACKET_RETH && (p->rkey == s->rkey || nth == highest[flow]))
			return true;
		if (!(p->flags & FC_PACKET_RETH) && nth < s->packets &&
		    s->packet[nth].payload_bytes == p->payload_bytes)
			return true;
	}
	return false;
}

static void forge(struct input *in)
{
	const uint8_t which = take(in), edits = take(in);
	const struct sender_flow *s = &senders[which & 1];
	const struct sender_packet *p = &s->packet[(cursor[which & 1] + which / 2) % s->packets];
	uint8_t frame[SENDER_FRAME_MAX];
	struct fc_packet said;

	memcpy(frame, p->frame, p->bytes);
	for (int i = 0; i <= edits % 8; i++) {
		const uint8_t at = take(in);
		frame[(at + (edits & 0x80 ? 0u : 34u)) % (p->bytes - 4)] ^= take(in);
	}
	sender_sum(frame, p->bytes);
	fc_decode(frame, p->bytes, p->bytes, &said);
	if (!passes_for_the_senders(&said))
		put_frame(frame, p->bytes);
	honest = false;
}

static void put_any(struct input *in)
{
	uint8_t frame[SENDER_FRAME_MAX];
	const uint32_t bytes = take(in) * 2u % sizeof frame;
	struct fc_packet said;

	for (uint32_t i = 0; i < bytes; i++)
		frame[i] = take(in);
	fc_decode(frame, bytes, bytes, &said);
	if (!passes_for_the_senders(&said))
		put_frame(frame, bytes);
	honest = false;
}

static void control(uint8_t what)
{
	switch (what % 4) {
	case 0:
		serve(1 + what / 4);
		break;
	case 1:
		(void)fc_parse_span(parser, 1 + what / 4);
		break;
	case 2:
		chain_open_services();
		break;
	default:
		now_ns += (uint64_t)what << 28; /* up to 17 s */
		honest = false;
	}
}

static void act(struct input *in)
{
	const uint8_t word = take(in), count = 1 + word / ACTIONS % 16;
	const uint32_t flow = word >> 7;
	const struct sender_flow *s = &senders[flow];

	switch (word % ACTIONS) {
	case NEXT_A:
	case NEXT_B:
		for (uint8_t i = 0; i < count; i++)
			if (cursor[word % ACTIONS] < senders[word % ACTIONS].packets)
				put_packet(word % ACTIONS, cursor[word % ACTIONS]++);
		break;
	case EARLY:
		if (cursor[flow] + count < s->packets)
			put_packet(flow, cursor[flow] + count);
		/* Where a run of messages began that is not from PSN 0, its first packet tells. */
		honest = honest && (cursor[flow] || !s->first_psn);
		break;
	case LATE:
		if (cursor[flow] >= count && cursor[flow] - count < s->packets)
			put_packet(flow, cursor[flow] - count);
		break;
	case SKIP:
		cursor[flow] += count;
		honest = false;
		break;
	case FORGE:
		forge(in);
		break;
	case FRAME:
		put_any(in);
		break;
	default:
		control(take(in));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, data + size };
	const uint8_t shape = take(&in);

	chain_start(SENDER_GRADIENT_BYTES);
	complete = 0;
	honest = true;
	now_ns = 1;
	for (uint32_t flow = 0; flow < SENDER_FLOWS; flow++) {
		const bool wraps = shape >> (2 + flow) & 1;
		sender_make(&senders[flow], flow, shape >> flow & 1, wraps ? 0xfffff0 : 0);
		cursor[flow] = highest[flow] = 0;
	}
	turn_generations();
	while (in.at < in.stop)
		act(&in);
	for (uint32_t flow = 0; flow < SENDER_FLOWS; flow++)
		while (cursor[flow] < senders[flow].packets)
			put_packet(flow, cursor[flow]++);
	serve(SLOTS);
	serve(SLOTS);
	if (honest)
		demand(complete == ALL_STEPS, "every step is complete where nothing was lost");
	return 0;
}
