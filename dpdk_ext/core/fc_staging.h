/* The extractor's memory, one file per ring: plan tables, the placement of each message, messages
 * staged until their plan is proved, and packets kept until their message is known. Read by the
 * compiler and by cffi.
 *
 * The state consists of 64-bit words. Before a word changes, its old value is written to the
 * journal. The commit is the ring's `tail` moving past journal_base, or journal_used becoming 0.
 * Opening the file rolls back what a killed extractor left, so that work is repeated from the last
 * commit with the same counts.
 *
 * Everything else (payloads, bitmaps of free blocks) is written without the journal, under one
 * rule: memory that is in use under the last commit is not overwritten before the next one. So a
 * block or a place of a kept packet that is freed between two commits is not reused before the
 * second of them; if there is no other room the span ends there. Bytes of the gradient are in use
 * if coverage, which is journalled, says so. */
#ifndef FC_STAGING_H
#define FC_STAGING_H

#include "fc_counters.h"
#include "fc_flow.h"
#include "fc_plan.h"
#include "fc_shm.h"

enum {
	FC_STAGING_VERSION = 6,
	FC_ORPHAN_BYTES = 4096, /* payload of a kept packet: the largest path MTU */
	FC_OTHER_COPIES = 256,  /* kept at once: 1 MiB. A choice; of others only their place is */
};

enum fc_placement_kind {
	FC_PLACEMENT_NONE,
	FC_PLACEMENT_STAGED,  /* `where`: record of the staged message */
	FC_PLACEMENT_SHARD,   /* `where`: send; `step` is valid */
	FC_PLACEMENT_IGNORED, /* carries no gradient, or that of an applied step */
	FC_PLACEMENT_DROPPED, /* staging was full */
};

/* Stored at index message position & (messages - 1). */
struct fc_placement {
	uint64_t position; /* commit word: position of the message it belongs to */
	uint64_t kind;     /* enum fc_placement_kind */
	uint64_t where;
	uint64_t step;
};

/* A staged message. Its block has the packets' bitmap, then the payload. */
struct fc_staged {
	uint64_t state; /* commit word: 1 if the record is in use */
	uint64_t next;  /* free list: record + 1 */
	uint64_t block_at, block_bytes;
	uint64_t bitmap_bytes;
	uint64_t packets_seen;
	uint64_t completed; /* order of completion, from 1; 0: not complete */
	/* Range of wire bytes that includes all conflicts but those of other copies that are kept.
	 */
	uint64_t conflict_from, conflict_stop;
	uint64_t spare[5];
	struct fc_message message; /* as last read from the parser */
};

struct fc_orphan {
	uint64_t used; /* commit word */
	uint64_t flow, psn, payload_bytes;
	uint64_t order;   /* order of arrival, from 1 */
	uint64_t differs; /* 1: another copy had other bytes */
};

/* A copy of a staged packet that has other bytes than the one that came first. */
struct fc_other_copy {
	uint64_t used;     /* commit word */
	uint64_t position; /* of the message */
	uint64_t psn, payload_bytes;
};

struct fc_journal_entry {
	uint64_t where; /* offset of the word in its file; FC_IN_SHARD: in the shard's */
	uint64_t before;
};

struct fc_staging_header {
	uint8_t magic[8]; /* "FCSTAGE\0" */
	uint32_t layout_version;
	uint32_t flows_max;
	uint64_t messages; /* placements: one per record of the flow table's pool */
	uint64_t records_max, orphans_max, sends_max, segments_max, journal_max;
	uint64_t data_bytes;
	uint64_t file_bytes;
	uint64_t plans_offset, sends_offset, segments_offset, placements_offset, records_offset,
		orphans_offset, orphan_data_offset, others_offset, other_data_offset,
		journal_offset, data_offset;
	uint64_t pad_identity[11];
	uint64_t journal_base; /* ring tail when it was started */
	uint64_t journal_used; /* number of entries */
	uint64_t pad_journal[14];
	/* Everything from here on is journalled. */
	uint64_t sends_used, segments_used;
	uint64_t records_used, records_free; /* number ever used; head of the free list */
	uint64_t records_in_use;
	uint64_t data_used;   /* end of the last block; between blocks everything is free */
	uint64_t data_in_use; /* bytes of blocks in use */
	uint64_t orphans_used, orphans_ever;
	uint64_t completions;
	uint64_t others_used;
	struct fc_extract_counters counters;
};

struct fc_staging {
	struct fc_map map;
	struct fc_staging_header *header;
	struct fc_flow_plan *plans;
	struct fc_send *sends;
	struct fc_segment *segments;
	struct fc_placement *placements;
	struct fc_staged *records;
	struct fc_orphan *orphans;
	uint8_t *orphan_data;
	struct fc_other_copy *others;
	uint8_t *other_data;
	struct fc_journal_entry *journal;
	uint8_t *data;
	uint64_t mask; /* messages - 1 */
};

struct fc_staging_sizes {
	uint64_t messages;   /* records of the flow table's pool, a power of two */
	uint64_t data_bytes; /* payload and bitmaps of all staged messages */
	uint64_t records;    /* messages staged at once */
	uint64_t orphans;    /* kept packets at once */
	uint64_t sends, segments;
};

int fc_staging_create(const char *path, const struct fc_staging_sizes *sizes,
		      struct fc_staging *out);
/* Opens the file and checks magic, layout version and all sizes. Does not roll back: that needs
 * the shard, see fc_extractor_open(). */
int fc_staging_open(const char *path, struct fc_staging *out);
void fc_staging_close(struct fc_staging *staging);

/* Ranges of missing wire bytes of a staged message, as fc_shard_next_missing. */
int fc_staged_next_missing(const struct fc_staging *staging, uint64_t record, uint64_t from,
			   uint64_t *start, uint64_t *stop);
/* Copies the payload (length_bytes), with zeros where nothing arrived. */
void fc_staged_read(const struct fc_staging *staging, uint64_t record, uint8_t *out);

#endif
