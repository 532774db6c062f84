/* The flow table and the parser as other files and Python see them. Read by the
 * compiler and by cffi. */
#ifndef FC_FLOW_API_H
#define FC_FLOW_API_H

#include "fc_flow.h"
#include "fc_ring_api.h"
#include "fc_shm.h"

enum {
	FC_NO_FLOW = 0x7fffffff, /* mark.flow of frames that belong to none */
	FC_SPAN_SLOTS = 256,     /* slots between two commits, at most */
};

struct fc_flows {
	struct fc_map map;
	struct fc_flows_header *header;
	struct fc_flow *flows;
	uint64_t *index; /* open addressing: upper half of the hash << 32 | flow + 1 */
	struct fc_message *messages;
	uint8_t *undo;
	uint64_t mask;         /* messages - 1 */
	struct fc_jump *jumps; /* the parser's own (fc_jumps.c); NULL for anybody else */
};

struct fc_parser;

/* `messages`: pool records, a power of two, at least twice the slots of the ring. */
int fc_flows_create(const char *path, uint64_t messages, struct fc_flows *out);
/* Opens and checks magic, layout version and every size. Only the parser opens
 * it writable; what a killed one left half done, fc_parser_open() takes back. */
int fc_flows_open(const char *path, int writable, struct fc_flows *out);
void fc_flows_close(struct fc_flows *flows);
uint64_t fc_flows_used(const struct fc_flows *flows);
uint64_t fc_flows_messages_made(const struct fc_flows *flows);
/* Copies the record named `position`; 1, or 0 when the pool no longer has it. */
int fc_flows_message(const struct fc_flows *flows, uint64_t position, struct fc_message *out);

/* The parser of `ring`, writing `flows`; both must outlive it. icrc_every: check
 * the ICRC of every n-th slot, 0 of none. */
int fc_parser_open(struct fc_ring *ring, struct fc_flows *flows, uint32_t icrc_every,
		   struct fc_parser **out);
void fc_parser_close(struct fc_parser *parser);
/* Marks up to `limit` slots and commits them in spans. Returns the slots parsed. */
int64_t fc_parse_span(struct fc_parser *parser, uint64_t limit);

#endif
