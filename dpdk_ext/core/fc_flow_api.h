/* The flow table and the parser, for other files and Python. Read by the compiler and by cffi. */
#ifndef FC_FLOW_API_H
#define FC_FLOW_API_H

#include "fc_flow.h"
#include "fc_ring_api.h"
#include "fc_shm.h"

enum {
	FC_NO_FLOW = 0x7fffffff, /* mark.flow of frames without a flow */
	FC_SPAN_SLOTS = 256,     /* most slots between two commits */
};

struct fc_flows {
	struct fc_map map;
	struct fc_flows_header *header;
	struct fc_flow *flows;
	uint64_t *index; /* open addressing: upper half of the hash << 32 | flow + 1 */
	struct fc_message *messages;
	uint8_t *undo;
	uint64_t mask;                 /* messages - 1 */
	struct fc_jump_pointer *jumps; /* parser only (fc_jump_pointers.c); else NULL */
};

struct fc_parser;

/* `messages`: records in the pool, a power of two, at least twice the slots of the ring. */
int fc_flows_create(const char *path, uint64_t messages, struct fc_flows *out);
/* Opens the file and checks magic, layout version and all sizes. Only the parser opens it
 * writable; fc_parser_open() then rolls back what a killed parser left unfinished. */
int fc_flows_open(const char *path, int writable, struct fc_flows *out);
void fc_flows_close(struct fc_flows *flows);
uint64_t fc_flows_used(const struct fc_flows *flows);
uint64_t fc_flows_messages_made(const struct fc_flows *flows);
/* Copies the record at `position`; returns 1, or 0 if the pool no longer has it. */
int fc_flows_message(const struct fc_flows *flows, uint64_t position, struct fc_message *out);

/* Opens the parser of `ring` with flow table `flows`; both must outlive it. icrc_every: check the
 * ICRC of every n-th slot; 0: none. */
int fc_parser_open(struct fc_ring *ring, struct fc_flows *flows, uint32_t icrc_every,
		   struct fc_parser **out);
void fc_parser_close(struct fc_parser *parser);
/* 1: every packet takes the general path, also those for which a shorter one gives the same. For
 * tests, which hold both against each other. */
void fc_parser_generally(struct fc_parser *parser, uint32_t general);
/* Parses up to `limit` slots and commits them in spans. Returns the number of parsed slots. */
int64_t fc_parse_span(struct fc_parser *parser, uint64_t limit);

#endif
