/* libFuzzer on plans: tables of any content for a flow whose messages are known. What the
 * extractor takes must write nothing outside the gradient and what lies behind it, count no
 * unit twice, and leave the files such that it can begin again. */
#include <stdlib.h>

#include "chain.h"
#include "sender.h"

enum { SENDS_MAX = 12, SEGMENTS_MAX = 24 };

struct input {
	const uint8_t *at, *stop;
};

static struct sender_flow sender;

/* Mostly small numbers, now and then any. */
static uint64_t take(struct input *in)
{
	uint64_t value = in->at < in->stop ? *in->at++ : 0;

	if (value < 0xf0)
		return value;
	const int bytes = 1 + (value & 7);
	value = 0;
	for (int i = 0; i < bytes; i++)
		value = value << 8 | (in->at < in->stop ? *in->at++ : 0xff);
	return value;
}

static uint64_t take_or_none(struct input *in)
{
	const uint64_t value = take(in);

	return value == 0xef ? UINT64_MAX : value;
}

static void install(struct input *in, uint32_t flow)
{
	struct fc_send sends[SENDS_MAX];
	struct fc_segment segments[SEGMENTS_MAX];
	const uint64_t sends_count = take(in) % (SENDS_MAX + 1);
	const uint64_t segments_count = take(in) % (SEGMENTS_MAX + 1);

	for (uint64_t i = 0; i < sends_count; i++)
		sends[i] = (struct fc_send){
			.wire_bytes = (uint32_t)take(in) * 16,
			.first_segment = (uint32_t)take(in),
			.segments = (uint32_t)take(in),
			.protocol = (uint8_t)take(in),
			.kind = (uint8_t)take(in),
			.skip_lines = (uint8_t)take(in),
			.module_buffer = (uint8_t)take(in),
		};
	for (uint64_t i = 0; i < segments_count; i++)
		segments[i] = (struct fc_segment){ (uint32_t)take(in) * 4, (uint32_t)take(in) * 4,
						   take(in) * 4 };
	const struct fc_flow_plan plan = {
		.state = FC_PLAN_ACTIVE,
		.first_number = take(in),
		.first_step = take(in),
		.first_sends = take(in),
		.each_sends = take(in),
		.first_at = take(in),
		.each_at = take(in),
		.flag_offset = take_or_none(in),
		.frontier = take_or_none(in),
		.stride = take(in),
		.phase = take(in),
		.second_at = take_or_none(in),
		.run_psn = take(in) % 2 ? FC_PSN_ORIGIN : 0,
		.run_shift = take(in),
	};
	(void)fc_plan_install(extractor, flow, &plan, sends, sends_count, segments, segments_count);
}

static void change(struct input *in)
{
	const uint32_t flow = (uint32_t)take(in) % 3;

	switch (take(in) % 7) {
	case 0: {
		const struct fc_skip skip = { take(in), take(in), take(in) };
		(void)fc_plan_skip(extractor, flow, &skip);
		break;
	}
	case 1:
		(void)fc_plan_resume(extractor, flow);
		break;
	case 2:
		(void)fc_plan_set(extractor, flow, take(in));
		break;
	case 3:
		fc_plans_forget(extractor);
		break;
	case 4:
		(void)fc_frontier_pass(extractor, flow, take(in));
		break;
	case 5:
		fc_shard_begin(&shard, (uint32_t)take(in) % FC_GENERATIONS, take(in));
		break;
	default:
		install(in, flow);
	}
}

static void check_shard(void)
{
	const struct fc_shard_header *h = shard.header;

	for (uint32_t generation = 0; generation < FC_GENERATIONS; generation++) {
		const struct fc_generation *g = &h->generations[generation];
		const uint8_t *data = fc_shard_data(&shard, generation);
		const uint64_t *coverage = fc_shard_coverage(&shard, generation);
		uint64_t covered = 0;
		for (uint64_t at = h->gradient_bytes; at < h->gradient_bytes + 65536; at++)
			demand(!data[at], "nothing is written behind the gradient");
		for (uint64_t unit = 0; unit < h->coverage_bytes * 8; unit++) {
			const bool there = coverage[unit / 64] >> (unit % 64) & 1;
			demand(!there || unit < shard.units,
			       "no unit behind the gradient is there");
			covered += there;
		}
		demand(g->state == FC_GENERATION_EMPTY || g->covered_units == covered,
		       "the units that are there are counted once");
	}
}

static void place_staged(void)
{
	for (uint32_t i = 0; i < staging.header->records_used; i++)
		if (staging.records[i].state)
			(void)fc_staged_place(extractor, i, UINT64_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, data + size };
	uint32_t put = 0;

	chain_start(SENDER_GRADIENT_BYTES);
	sender_make(&sender, 0, take(&in) & 1, 0);
	fc_shard_begin(&shard, 0, 1);
	fc_shard_begin(&shard, 1, 2);
	while (in.at < in.stop) {
		change(&in);
		for (uint64_t n = take(&in) % 32; n && put < sender.packets; n--, put++)
			(void)chain_put(sender.packet[put].frame, sender.packet[put].bytes,
					put + 1);
		while (fc_parse_span(parser, SLOTS) + fc_extract_span(extractor, SLOTS))
			continue;
		place_staged();
	}
	check_shard();
	chain_open_services();
	return 0;
}
