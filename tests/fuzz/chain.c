#include "chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct fc_ring ring;
struct fc_flows flows;
struct fc_staging staging;
struct fc_shard shard;
struct fc_parser *parser;
struct fc_extractor *extractor;

void demand(bool holds, const char *promise)
{
	if (!holds) {
		fprintf(stderr, "broken promise: %s\n", promise);
		abort();
	}
}

static void open_files(uint64_t gradient_bytes)
{
	const struct fc_staging_sizes sizes = { .messages = 2 * SLOTS,
						.data_bytes = 256 << 10,
						.records = 48,
						.orphans = 16,
						.sends = 64,
						.segments = 128 };
	char paths[4][64];

	for (int i = 0; i < 4; i++)
		snprintf(paths[i], sizeof paths[i], "/dev/shm/fc-fuzz-%d-%d", (int)getpid(), i);
	demand(!fc_ring_create(paths[0], SLOTS, SLOT_BYTES, 1, &ring) &&
		       !fc_flows_create(paths[1], 2 * SLOTS, &flows) &&
		       !fc_staging_create(paths[2], &sizes, &staging) &&
		       !fc_shard_create(paths[3], gradient_bytes, 0, 4, &shard),
	       "ring, table, staging and shard open");
	for (int i = 0; i < 4; i++)
		unlink(paths[i]);
}

void chain_open_services(void)
{
	fc_extractor_close(extractor);
	fc_parser_close(parser);
	parser = NULL;
	extractor = NULL;
	demand(!fc_parser_open(&ring, &flows, 1, &parser), "a parser opens");
	demand(!fc_extractor_open(&ring, &flows, &staging, &shard, 0, &extractor),
	       "an extractor opens");
}

/* As fresh files: all zero but for what their creators wrote. Only the ring goes on. */
static void clear_files(void)
{
	const uint64_t used = flows.header->flows_used;
	struct fc_staging_header *h = staging.header;

	FC_STORE_RELEASE(&ring.reader->tail, fc_ring_parsed(&ring));
	memset(flows.flows, 0, (used + 1) * sizeof *flows.flows);
	memset(flows.index, 0, FC_INDEX_ENTRIES * sizeof *flows.index);
	memset(flows.messages, 0, 2 * SLOTS * sizeof *flows.messages);
	flows.header->flows_used = flows.header->flows_made = 0;
	flows.header->messages_made = 0;
	memset(staging.plans, 0, (used + 1) * sizeof *staging.plans);
	memset(staging.placements, 0, h->journal_offset - h->placements_offset);
	memset(staging.data, 0, h->data_used);
	memset(&h->sends_used, 0, sizeof *h - offsetof(struct fc_staging_header, sends_used));
	fc_shard_clear(&shard);
	memset(shard.header->generations, 0, sizeof shard.header->generations);
	shard.header->applied_step = 0;
}

void chain_start(uint64_t gradient_bytes)
{
	if (!ring.header)
		open_files(gradient_bytes);
	clear_files();
	chain_open_services();
}

bool chain_put(const uint8_t *frame, uint32_t bytes, uint64_t now_ns)
{
	struct fc_capture_commit commit = { 0 };

	if (fc_ring_put(&ring, 0, frame, bytes, bytes, now_ns, 0))
		return false;
	fc_ring_publish(&ring, 1, &commit);
	return true;
}
