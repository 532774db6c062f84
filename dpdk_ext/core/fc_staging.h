/* The extractor's own memory, one file per ring: plan tables, the home each
 * message was given, messages staged until their plan is proved, and packets
 * held until their message is known. Read by the compiler and by cffi.
 *
 * All state is 64-bit words. Before a word changes its old value goes to the
 * journal; `tail` of the ring moving past journal_base, or journal_used becoming
 * 0, commits. What a killed extractor left is taken back when the file is opened,
 * so work is redone from the last commit with the same counts.
 *
 * What is no such word (payloads, and bitmaps of blocks that are free) is stored
 * without the journal, which holds by one rule: memory that means something under
 * the last commit is not overwritten, without the journal, before the next one. So
 * a block, or the place of a held packet, that is freed between two commits is given
 * to nobody else until the second of them; where nothing else is left the span ends
 * there. Bytes of the gradient mean something where coverage, journalled, says so. */
#ifndef FC_STAGING_H
#define FC_STAGING_H

#include "fc_counters.h"
#include "fc_flow.h"
#include "fc_plan.h"
#include "fc_shm.h"

enum {
	FC_STAGING_VERSION = 5,
	FC_HELD_BYTES = 4096, /* payload of a held packet: the largest path MTU */
};

enum fc_home_kind {
	FC_HOME_NONE,
	FC_HOME_STAGED,  /* `where`: staged record */
	FC_HOME_SHARD,   /* `where`: send; `step` */
	FC_HOME_IGNORED, /* carries no gradient, or one that was applied */
	FC_HOME_DROPPED, /* there was no room to stage it */
};

/* Lies at message position & (messages - 1). */
struct fc_home {
	uint64_t position; /* commit word: of the message it belongs to */
	uint64_t kind;     /* enum fc_home_kind */
	uint64_t where;
	uint64_t step;
};

/* A block of the data region holds the packets' bitmap, then the payload. */
struct fc_staged {
	uint64_t state; /* commit word: 1 while it holds a message */
	uint64_t next;  /* free list: record + 1 */
	uint64_t block_at, block_bytes;
	uint64_t bitmap_bytes;
	uint64_t packets_seen;
	uint64_t completed; /* ordinal in which messages became complete, from 1; 0: is not */
	uint64_t conflict_from, conflict_stop; /* wire bytes around all that two copies differ on */
	uint64_t spare[5];
	struct fc_message message; /* as the parser last told it */
};

struct fc_held {
	uint64_t used; /* commit word */
	uint64_t flow, psn, payload_bytes;
	uint64_t order;   /* counts held packets, from 1 */
	uint64_t differs; /* 1: another copy of it was not the same */
};

struct fc_journal_entry {
	uint64_t where; /* offset of the word in its file; FC_IN_SHARD: in the shard's */
	uint64_t before;
};

struct fc_staging_header {
	uint8_t magic[8]; /* "FCSTAGE\0" */
	uint32_t layout_version;
	uint32_t flows_max;
	uint64_t messages; /* homes: as many as the flow table's pool has records */
	uint64_t records_max, held_max, sends_max, segments_max, journal_max;
	uint64_t data_bytes;
	uint64_t file_bytes;
	uint64_t plans_offset, sends_offset, segments_offset, homes_offset, records_offset,
		held_offset, held_data_offset, journal_offset, data_offset;
	uint64_t pad_identity[13];
	uint64_t journal_base; /* ring tail when it was begun */
	uint64_t journal_used; /* entries */
	uint64_t pad_journal[14];
	/* Everything below is journalled. */
	uint64_t sends_used, segments_used;
	uint64_t records_used, records_free; /* high water; head of the free list */
	uint64_t records_held;
	uint64_t data_used; /* high water of the data region; between blocks in use all is free */
	uint64_t data_held; /* bytes of blocks in use */
	uint64_t held_used, held_ever;
	uint64_t completions;
	struct fc_extract_counters counters;
};

struct fc_staging {
	struct fc_map map;
	struct fc_staging_header *header;
	struct fc_flow_plan *plans;
	struct fc_send *sends;
	struct fc_segment *segments;
	struct fc_home *homes;
	struct fc_staged *records;
	struct fc_held *held;
	uint8_t *held_data;
	struct fc_journal_entry *journal;
	uint8_t *data;
	uint64_t mask; /* messages - 1 */
};

struct fc_staging_sizes {
	uint64_t messages;   /* a power of two: records of the flow table's pool */
	uint64_t data_bytes; /* payload and bitmaps of staged messages, all told */
	uint64_t records;    /* messages staged at once */
	uint64_t held;       /* packets without a message, at once */
	uint64_t sends, segments;
};

int fc_staging_create(const char *path, const struct fc_staging_sizes *sizes,
		      struct fc_staging *out);
/* Opens and checks magic, layout version and every size. Takes nothing back:
 * fc_extractor_open() does, since it takes the shard to know all. */
int fc_staging_open(const char *path, struct fc_staging *out);
void fc_staging_close(struct fc_staging *staging);

/* Runs of wire bytes of a staged message that never came: as fc_shard_next_missing. */
int fc_staged_next_missing(const struct fc_staging *staging, uint64_t record, uint64_t from,
			   uint64_t *start, uint64_t *stop);
/* Copies the payload, length_bytes of it, zero where nothing came. */
void fc_staged_read(const struct fc_staging *staging, uint64_t record, uint8_t *out);

#endif
