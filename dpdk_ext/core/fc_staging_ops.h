/* Internal interface of the extractor: the journal, and functions shared by its files. Inline
 * functions, so not read by cffi.
 * fc_staging_blocks.c      memory for staged messages
 * fc_staged_message.c      packets into staged messages
 * fc_orphan_packets.c      packets whose message is unknown
 * fc_other_copies.c        copies of staged packets that differ
 * fc_conflicting_copies.c  packets that differ from another one
 * fc_shard_write.c         bytes into the shard
 * fc_placement.c           chooses among these for each message
 * fc_extract.c             spans
 * fc_plan_changes.c        changes that Python makes between spans
 * fc_across_rings.c        packets of one flow in several rings */
#ifndef FC_STAGING_OPS_H
#define FC_STAGING_OPS_H

#include <stdlib.h>

#include "fc_common.h"
#include "fc_free_ranges.h"
#include "fc_extract.h"
#include "fc_ring_ops.h"

/* Journal entries; more than one packet can need: a staged record, its block, and two words per
 * element of the smallest size. A span ends before fewer are left than for the packet of a slot, a
 * kept packet, and another message that it may belong to. */
#define FC_JOURNAL_ENTRIES (1u << 16)
#define FC_JOURNAL_PACKET (1u << 13)
#define FC_IN_SHARD (1ull << 63)
#define FC_NUMBER_UNKNOWN UINT64_MAX

/* A block that was freed in the open change. */
struct fc_freed_block {
	uint64_t at, bytes;
};

/* Incomplete staged messages, by log2 of their block size and in order of age; all values are
 * index + 1. */
struct fc_incomplete_lists {
	uint32_t oldest[64], newest[64];
	uint32_t *older, *newer; /* by record */
	uint8_t *in_class;       /* by record: size class + 1; 0: complete */
};

/* A place for a kept packet; links are index + 1. */
struct fc_orphan_slot {
	uint32_t next;         /* next in its hash bucket */
	uint32_t older, newer; /* in the list of its rank */
	uint8_t rank;
};

enum { FC_ORPHAN_RANKS = 4 };

struct fc_orphan_index {
	struct fc_orphan_slot *of; /* by index */
	uint32_t *buckets;
	struct fc_orphan **sorted; /* buffer for sorting */
	uint32_t *free;            /* a queue; the first was freed earliest */
	uint64_t free_from, free_count;
	uint32_t oldest[FC_ORPHAN_RANKS], newest[FC_ORPHAN_RANKS];
	bool stale; /* plans have changed since the packets were ranked */
};

struct fc_extractor {
	struct fc_ring *ring;
	const struct fc_flows *flows;
	struct fc_staging *staging;
	struct fc_shard *shard;               /* NULL until it is set */
	struct fc_extract_counters *counters; /* staging->header->counters */
	bool block, stalled, lacks_step;
	uint64_t
		ring_number; /* of the ring among those of a run; FC_RING_UNKNOWN until it is set */
	/* The open change: its number, whether it freed a place or block, whether it is at its
	 * first slot, the blocks it freed, and the change in which each place was last freed.
	 * Everything else that is free was free before it. */
	uint64_t change;
	bool freed, first_slot;
	/* The last step of which messages lack a generation, and the last one that a span ended
	 * for. */
	uint64_t wanted_step, asked_step;
	struct fc_freed_block *freed_blocks;
	uint64_t freed_blocks_used;
	uint64_t *orphan_freed;
	uint64_t other_freed[FC_OTHER_COPIES]; /* the same for places of other copies */
	struct fc_orphan_index orphans;
	struct fc_free_ranges free_ranges; /* of the data region: free under the last commit */
	struct fc_incomplete_lists incomplete;
	const uint8_t *ahead; /* of a later slot's payload what is not fetched yet, or NULL */
	uint8_t scratch[FC_ORPHAN_BYTES];
};

/* Payload of one packet on its way to staging or shard. */
struct fc_packet_payload {
	uint64_t flow, psn;
	const uint8_t *payload;
	uint32_t payload_bytes;
};

/* What to fetch while `bytes` bytes of a payload are read. */
static inline const uint8_t *fc_take_ahead(struct fc_extractor *x, uint64_t bytes)
{
	const uint8_t *ahead = x->ahead;

	if (ahead)
		x->ahead += bytes;
	return ahead;
}

static inline uint64_t fc_journal_left(const struct fc_extractor *x)
{
	return FC_JOURNAL_ENTRIES - x->staging->header->journal_used;
}

/* `where`: as in the journal. Old values are restored in reverse order, so a word may be journalled
 * twice. */
static inline void fc_set_at(struct fc_extractor *x, uint64_t where, uint64_t *word, uint64_t value)
{
	struct fc_staging_header *h = x->staging->header;
	struct fc_journal_entry *entry = &x->staging->journal[h->journal_used];

	/* Checked before each packet; memory after the journal holds payloads. */
	if (FC_UNLIKELY(h->journal_used >= FC_JOURNAL_ENTRIES))
		abort();
	entry->where = where;
	entry->before = *word;
	/* A kill preserves program order, so only the compiler must not reorder. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	h->journal_used++;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	/* The updater reads words of the shard meanwhile. */
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline void fc_set_in_shard(struct fc_extractor *x, uint64_t *word, uint64_t value)
{
	fc_set_at(x, FC_IN_SHARD | (uint64_t)((const uint8_t *)word - x->shard->map.base), word,
		  value);
}

static inline void fc_set(struct fc_extractor *x, uint64_t *word, uint64_t value)
{
	const uint8_t *at = (const uint8_t *)word, *base = x->staging->map.base;

	if (at >= base && at < base + x->staging->map.bytes)
		fc_set_at(x, (uint64_t)(at - base), word, value);
	else
		fc_set_in_shard(x, word, value);
}

/* fc_extract.c: everything that fc_set() changes between the two is committed as a whole. */
void fc_change_begin(struct fc_extractor *x);
void fc_change_end(struct fc_extractor *x);

/* Result for a slot. */
enum fc_slot_result {
	FC_SLOT_DONE,
	FC_SLOT_WAITS,        /* the file source must wait; nothing was changed */
	FC_SLOT_NEEDS_COMMIT, /* commit the change, then repeat the slot */
	FC_SLOT_NEEDS_STEP,   /* its step's generation can be opened; nothing was changed */
};

/* fc_staging_blocks.c: computes free blocks and incomplete messages from the records. -EINVAL: they
 * are inconsistent. */
int fc_blocks_open(struct fc_extractor *x);
void fc_blocks_close(struct fc_extractor *x);
/* Blocks freed by the previous change are committed and can be reused. */
void fc_blocks_settle(struct fc_extractor *x);
void fc_block_free(struct fc_extractor *x, uint64_t at, uint64_t bytes);
/* Reclaims blocks of incomplete messages for `m`; false: none could be. */
bool fc_incomplete_reclaim(struct fc_extractor *x, const struct fc_message *m);
/* The message is complete. */
void fc_incomplete_end(struct fc_extractor *x, uint64_t record);
/* A record with a block for `m`; UINT64_MAX: no room. */
uint64_t fc_record_allocate(struct fc_extractor *x, const struct fc_message *m);
void fc_record_free(struct fc_extractor *x, uint64_t record);
/* Whether there can ever be room for `m`; a message longer than staging is not waited for. */
bool fc_record_fits(const struct fc_extractor *x, const struct fc_message *m);
/* A zeroed block for `m`, recorded in `r`; false: no room. */
bool fc_record_block(struct fc_extractor *x, struct fc_staged *r, const struct fc_message *m);
void fc_record_describe(struct fc_extractor *x, struct fc_staged *r, const struct fc_message *m);
/* Whether the flow has a plan, active or suspended by a deviation. */
static inline bool fc_plan_follows(const struct fc_flow_plan *plan)
{
	return plan->state == FC_PLAN_ACTIVE || plan->state == FC_PLAN_SUSPENDED;
}

/* enum fc_placement_kind; the bits above have the flag of the message's lines. */
static inline uint64_t fc_placement_kind(const struct fc_placement *placement)
{
	return placement->kind & 0xff;
}

/* Sets the number of `m` from its position in a run, if the plan counts in runs. */
static inline void fc_number_in_run(const struct fc_flow_plan *plan, struct fc_message *m)
{
	if (fc_plan_follows(plan) && plan->run_psn)
		m->number =
			m->run_psn == plan->run_psn ? m->nth + plan->run_shift : FC_NUMBER_UNKNOWN;
}

/* Number in the plan of message `number` of the flow. */
static inline uint64_t fc_number_in_plan(const struct fc_flow_plan *plan, uint64_t number)
{
	return number == FC_NUMBER_UNKNOWN ? number : number * plan->stride + plan->phase;
}

/* fc_staged_message.c: payload bytes of packet `nth` of a message; UINT32_MAX: no such packet. */
uint32_t fc_bytes_of_packet(const struct fc_message *m, uint64_t nth);
void fc_stage_packet(struct fc_extractor *x, uint64_t record,
		     const struct fc_packet_payload *piece);
/* Compares and counts a copy of bytes that are there; false: they differ. */
bool fc_compare_copy(struct fc_extractor *x, const uint8_t *kept,
		     const struct fc_packet_payload *piece);
/* Records that two copies of the packet with this PSN differ. */
void fc_stage_conflict(struct fc_extractor *x, uint64_t record,
		       const struct fc_packet_payload *piece);
/* Updates a staged message with what the parser learned since; false: it needs a larger block and
 * there is none; then nothing was changed. */
bool fc_stage_follow(struct fc_extractor *x, uint64_t record, const struct fc_message *now);

/* fc_other_copies.c: keeps a copy of a staged packet that has other bytes; false: no room. */
bool fc_other_copy_keep(struct fc_extractor *x, uint64_t record,
			const struct fc_packet_payload *piece);
void fc_other_copies_free(struct fc_extractor *x, uint64_t position);
/* fc_orphan_packets.c: keeps a packet whose message is unknown; doubted: its owner is unknown too.
 */
enum fc_slot_result fc_orphan_keep(struct fc_extractor *x, const struct fc_packet_payload *piece,
				   bool doubted);
/* A kept packet of `flow` in [start, stop), with the lowest PSN or close to it; UINT64_MAX: none.
 */
uint64_t fc_orphan_find(struct fc_extractor *x, uint64_t flow, uint64_t start, uint64_t stop);
void fc_orphan_release(struct fc_extractor *x, uint64_t index);
/* Builds the index from the places in use. -ENOMEM. */
int fc_orphans_open(struct fc_extractor *x);
void fc_orphans_close(struct fc_extractor *x);
/* Plans were added or removed: ranks change. */
void fc_orphans_replanned(struct fc_extractor *x);
/* Drops all kept packets of a flow that is ignored. */
void fc_orphans_ignore(struct fc_extractor *x, uint64_t flow);

/* fc_shard_write.c: writes a packet's bytes to the generation of `step`, if it has one; into a
 * PARTIAL one nothing is written, its bytes are compared. */
int fc_place_generation(const struct fc_extractor *x, uint64_t step);
void fc_place_packet(struct fc_extractor *x, const struct fc_send *send, uint64_t step,
		     uint32_t flag, uint64_t wire_offset, const struct fc_packet_payload *piece);
/* Records that copies of a message of `step` differ within its wire bytes [wire_from, wire_stop).
 * piece: the packet that they are of; NULL: several. */
void fc_place_conflict(struct fc_extractor *x, const struct fc_send *send, uint64_t step,
		       uint64_t wire_from, uint64_t wire_stop,
		       const struct fc_packet_payload *piece);

/* fc_conflicting_copies.c: the packet may also belong to message `alternative`. Bytes that differ
 * are not trusted for either. own: placement of its own message, where it is at `offset_bytes`,
 * or NULL. */
void fc_compare_alternative(struct fc_extractor *x, uint64_t alternative,
			    const struct fc_placement *own, uint64_t offset_bytes,
			    const struct fc_packet_payload *piece);
/* It is not known whether the packet's bytes are those of the message placed there, at
 * `offset_bytes` of it. */
void fc_conflict_note(struct fc_extractor *x, const struct fc_placement *placement,
		      uint64_t offset_bytes, const struct fc_packet_payload *piece);

/* fc_placement.c: delivers a packet to where its message is placed. */
void fc_deliver(struct fc_extractor *x, const struct fc_placement *placement, uint64_t offset_bytes,
		const struct fc_packet_payload *piece);
/* Counts packets of a flow for which staging was full. */
void fc_note_full(struct fc_extractor *x, uint64_t flow, uint64_t packets);
enum fc_slot_result fc_deliver_packet(struct fc_extractor *x, const struct fc_mark *mark,
				      const struct fc_packet_payload *piece);
/* Delivers a kept packet of message `m`; differs: copies of it had other bytes. */
void fc_deliver_orphan(struct fc_extractor *x, const struct fc_placement *placement,
		       const struct fc_message *m, const struct fc_packet_payload *piece,
		       bool differs);
/* What the plan says about a message now. */
struct fc_placement_decision {
	uint64_t kind; /* enum fc_placement_kind: STAGED, SHARD or IGNORED */
	uint64_t send, step;
	uint32_t flag;
	bool deviates; /* differs from the plan: suspends the flow */
	bool of_step;  /* `step` is valid */
	bool unopened; /* it would be placed, but its step has no generation yet */
};
/* Number of the first message, of a plan with a frontier, that no ring has reported yet. */
uint64_t fc_plan_frontier(const struct fc_extractor *x, const struct fc_flow_plan *plan);
/* Whether the plan covers message `number`. A suspended plan is valid for messages before the
 * deviation. */
bool fc_plan_covers(const struct fc_flow_plan *plan, uint64_t number);
/* Number in the plan of message `number`; false: it belongs to no step. */
bool fc_place_in_plan(const struct fc_flow_plan *plan, uint64_t number, uint64_t *nth);
/* Send and step of message `nth` of the plan; false: none. */
bool fc_send_in_plan(const struct fc_flow_plan *plan, uint64_t nth, uint64_t *send, uint64_t *step);
struct fc_placement_decision fc_placement_decide(const struct fc_extractor *x,
						 const struct fc_message *m);
/* Notes a step of which a message lacks the generation. */
void fc_want_step(struct fc_extractor *x, const struct fc_placement_decision *decision);
/* fc_other_copies.c: compares those of a staged message with what is in the shard, and lets them
 * go. */
void fc_other_copies_place(struct fc_extractor *x, uint64_t record,
			   const struct fc_placement_decision *decision);
/* Records the decision in the plan and the counters. */
void fc_placement_note(struct fc_extractor *x, const struct fc_message *m,
		       const struct fc_placement_decision *decision);
void fc_placement_set(struct fc_extractor *x, uint64_t position, uint64_t kind, uint64_t where,
		      uint64_t step);

#endif
