/* Ring, flow table, staging and shard in memory files, with a parser and an extractor on them:
 * what several fuzzers drive. */
#ifndef CHAIN_H
#define CHAIN_H

#include "fc_flow_ops.h"
#include "fc_staging_ops.h"

enum {
	SLOTS = 64,
	SLOT_BYTES = 1024,
};

extern struct fc_ring ring;
extern struct fc_flows flows;
extern struct fc_staging staging;
extern struct fc_shard shard;
extern struct fc_parser *parser;
extern struct fc_extractor *extractor;

/* Says which promise was broken, and ends the process. */
void demand(bool holds, const char *promise);
/* Empty tables for another input, and both services open. */
void chain_start(uint64_t gradient_bytes);
/* Both services begin again on what is there. */
void chain_open_services(void);
/* One frame into the ring; false where it is full. */
bool chain_put(const uint8_t *frame, uint32_t bytes, uint64_t now_ns);

#endif
