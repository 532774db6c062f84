/* The journal, and what the extractor's files call of each other. Inlines for C,
 * so cffi does not read this file. fc_blocks.c: room for staged messages;
 * fc_stage.c: packets into it; fc_held.c: those without a message; fc_contest.c: those that
 * differ from what another packet says; fc_place.c: bytes
 * into the shard; fc_home.c: which of them a message is for; fc_extract.c: spans;
 * fc_replan.c: what Python changes between them; fc_adopt.c: what one ring's
 * extractor does for another's. */
#ifndef FC_STAGING_OPS_H
#define FC_STAGING_OPS_H

#include <stdlib.h>

#include "fc_common.h"
#include "fc_extents.h"
#include "fc_extract.h"
#include "fc_ring_ops.h"

/* Entries of the journal, and more than one packet can need: a staged record, its block,
 * and two words per element of the smallest size. A span ends before it has fewer left
 * than for the packet of a slot, one that waited for it and another message it may be of. */
#define FC_JOURNAL_ENTRIES (1u << 16)
#define FC_JOURNAL_PACKET (1u << 13)
#define FC_IN_SHARD (1ull << 63)
#define FC_NUMBER_UNKNOWN UINT64_MAX

/* A block that was given back in the change that is open. */
struct fc_given {
	uint64_t at, bytes;
};

/* Records of which not all has come, by the logarithm of their blocks' bytes and from the oldest
 * on; all by index + 1. */
struct fc_claims {
	uint32_t oldest[64], newest[64];
	uint32_t *older, *newer; /* by record */
	uint8_t *in_class;       /* by record: 0: is none */
};

/* A place for a held packet; others by index + 1. */
struct fc_place {
	uint32_t next;         /* of those whose flow and PSN mix alike */
	uint32_t older, newer; /* of its rank */
	uint8_t rank;
};

enum { FC_HELD_RANKS = 4 };

struct fc_places {
	struct fc_place *of; /* by index */
	uint32_t *buckets;
	struct fc_held **sorted; /* room to sort them */
	uint32_t *free;          /* a queue, the one that has been free for longest first */
	uint64_t free_from, free_count;
	uint32_t oldest[FC_HELD_RANKS], newest[FC_HELD_RANKS];
	bool stale; /* plans changed since they were ranked */
};

struct fc_extractor {
	struct fc_ring *ring;
	const struct fc_flows *flows;
	struct fc_staging *staging;
	struct fc_shard *shard;               /* NULL until there is one */
	struct fc_extract_counters *counters; /* staging->header->counters */
	bool block, stalled;
	/* Of the change that is open: its ordinal, whether it freed a place or a block and is
	 * at its first slot, the blocks it gave back, and in which change each place was freed
	 * last. All else that is free was so before it. */
	uint64_t change;
	bool freed, first_slot;
	struct fc_given *given;
	uint64_t given_used;
	uint64_t *place_freed;
	struct fc_places places;
	struct fc_extents extents; /* of the data region: free under the last commit */
	struct fc_claims claims;
	uint8_t scratch[FC_HELD_BYTES];
};

/* One packet's payload on its way to its home. */
struct fc_piece {
	uint64_t flow, psn;
	const uint8_t *payload;
	uint32_t payload_bytes;
};

static inline uint64_t fc_journal_left(const struct fc_extractor *x)
{
	return FC_JOURNAL_ENTRIES - x->staging->header->journal_used;
}

/* Old values leave in reverse order, so a word may be journalled twice. */
static inline void fc_set(struct fc_extractor *x, uint64_t *word, uint64_t value)
{
	struct fc_staging_header *h = x->staging->header;
	const uint8_t *at = (const uint8_t *)word, *base = x->staging->map.base;
	struct fc_journal_entry *entry = &x->staging->journal[h->journal_used];

	/* Whoever begins a packet looks that there is room for it; behind the journal lie payloads. */
	if (FC_UNLIKELY(h->journal_used >= FC_JOURNAL_ENTRIES))
		abort();

	if (at >= base && at < base + x->staging->map.bytes)
		entry->where = (uint64_t)(at - base);
	else
		entry->where = FC_IN_SHARD | (uint64_t)(at - x->shard->map.base);
	entry->before = *word;
	/* A kill keeps program order, so the compiler is the only one to hold back. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	h->journal_used++;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	/* Words of the shard are read by the updater meanwhile. */
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* fc_extract.c: between the two all that fc_set() changes stands or falls together. */
void fc_change_begin(struct fc_extractor *x);
void fc_change_end(struct fc_extractor *x);

/* What becomes of a slot. */
enum fc_slot_end {
	FC_SLOT_DONE,
	FC_SLOT_WAITS,        /* its source must wait for room; nothing was changed for it */
	FC_SLOT_NEEDS_COMMIT, /* the change is to be committed, then the slot comes again */
};

/* fc_blocks.c: what is free and what is claimed, read off the records. -EINVAL: they are torn. */
int fc_blocks_open(struct fc_extractor *x);
void fc_blocks_close(struct fc_extractor *x);
/* What the change before gave back is committed, and free. */
void fc_blocks_settle(struct fc_extractor *x);
void fc_block_give(struct fc_extractor *x, uint64_t at, uint64_t bytes);
/* Messages of which not all has come make room for `m`; false: there are none that would. */
bool fc_claims_give_way(struct fc_extractor *x, const struct fc_message *m);
/* All of it came. */
void fc_claim_end(struct fc_extractor *x, uint64_t record);
/* A record with a block for `m`; UINT64_MAX where there is no room. */
uint64_t fc_record_take(struct fc_extractor *x, const struct fc_message *m);
void fc_record_give(struct fc_extractor *x, uint64_t record);
/* May there ever be room for `m`? Nobody waits for one that claims more than there is. */
bool fc_record_fits(const struct fc_extractor *x, const struct fc_message *m);
/* A zeroed block for `m`, noted in `r`; false where there is no room. */
bool fc_record_block(struct fc_extractor *x, struct fc_staged *r, const struct fc_message *m);
void fc_record_describe(struct fc_extractor *x, struct fc_staged *r, const struct fc_message *m);
/* Does the plan follow its flow, or did until a message deviated? */
static inline bool fc_plan_follows(const struct fc_flow_plan *plan)
{
	return plan->state == FC_PLAN_ACTIVE || plan->state == FC_PLAN_SUSPENDED;
}

/* enum fc_home_kind; above it lies the flag of the message's lines. */
static inline uint64_t fc_home_kind(const struct fc_home *home)
{
	return home->kind & 0xff;
}

/* `m` gets the number by which the plan of its flow has it, where that counts in a run. */
static inline void fc_number_in_run(const struct fc_flow_plan *plan, struct fc_message *m)
{
	if (fc_plan_follows(plan) && plan->run_psn)
		m->number =
			m->run_psn == plan->run_psn ? m->nth + plan->run_shift : FC_NUMBER_UNKNOWN;
}

/* What a plan calls message `number` of its flow. */
static inline uint64_t fc_number_in_plan(const struct fc_flow_plan *plan, uint64_t number)
{
	return number == FC_NUMBER_UNKNOWN ? number : number * plan->stride + plan->phase;
}

/* fc_stage.c: payload bytes a message has in its packet `nth`; UINT32_MAX: there is
 * none such. */
uint32_t fc_bytes_of_packet(const struct fc_message *m, uint64_t nth);
void fc_stage_packet(struct fc_extractor *x, uint64_t record, const struct fc_piece *piece);
/* Counts a copy of what is kept; false where the two differ. */
bool fc_compare_copy(struct fc_extractor *x, const uint8_t *kept, const struct fc_piece *piece);
/* Two copies of the packet with that PSN differ. */
void fc_stage_conflict(struct fc_extractor *x, uint64_t record, const struct fc_piece *piece);
/* Follows what the parser learned of the message since; false where it needs a larger
 * block and there is none, and nothing was changed. */
bool fc_stage_follow(struct fc_extractor *x, uint64_t record, const struct fc_message *now);

/* fc_held.c: keeps a packet whose message is not known; doubted: nor whether it is its owner's. */
enum fc_slot_end fc_hold_packet(struct fc_extractor *x, const struct fc_piece *piece, bool doubted);
/* A held packet of `flow` in [start, stop), the one with the least PSNs or near it; UINT64_MAX:
 * there is none. */
uint64_t fc_held_find(struct fc_extractor *x, uint64_t flow, uint64_t start, uint64_t stop);
void fc_held_release(struct fc_extractor *x, uint64_t index);
/* What finds places, read off those in use. -ENOMEM. */
int fc_held_open(struct fc_extractor *x);
void fc_held_close(struct fc_extractor *x);
/* Flows are followed that were not, or the other way round. */
void fc_held_replanned(struct fc_extractor *x);
/* Nothing is kept of a flow that is ignored. */
void fc_held_ignore(struct fc_extractor *x, uint64_t flow);

/* fc_place.c: the packet's bytes into the generation of `step`, if it has one. */
int fc_place_generation(const struct fc_extractor *x, uint64_t step);
void fc_place_packet(struct fc_extractor *x, const struct fc_send *send, uint64_t step,
		     uint32_t flag, uint64_t wire_offset, const uint8_t *payload,
		     uint32_t payload_bytes);
/* Copies of a message of `step` differ on so many bytes. */
void fc_place_conflict(struct fc_extractor *x, const struct fc_send *send, uint64_t step,
		       uint64_t bytes);

/* fc_contest.c: a packet that may be of message `rival`, too, which is not its own: bytes that
 * differ are neither's. own: where its own message lives, or NULL. */
void fc_contest_packet(struct fc_extractor *x, uint64_t rival, const struct fc_home *own,
		       const struct fc_piece *piece);
/* Nobody knows whether the packet's bytes are those of the message that lives there. */
void fc_contest(struct fc_extractor *x, const struct fc_home *home, const struct fc_piece *piece);

/* fc_home.c: the packet to where its message lives. */
void fc_home_deliver(struct fc_extractor *x, const struct fc_home *home, uint64_t offset_bytes,
		     const struct fc_piece *piece);
/* So many packets of a flow find no room in staging. */
void fc_note_full(struct fc_extractor *x, uint64_t flow, uint64_t packets);
enum fc_slot_end fc_home_packet(struct fc_extractor *x, const struct fc_mark *mark,
				const struct fc_piece *piece);
/* A packet that waited for its message `m`; differs: so did copies of it meanwhile. */
void fc_home_deliver_held(struct fc_extractor *x, const struct fc_home *home,
			  const struct fc_message *m, const struct fc_piece *piece, bool differs);
/* What the plan says of a message now. */
struct fc_decision {
	uint64_t kind; /* enum fc_home_kind: STAGED, SHARD or IGNORED */
	uint64_t send, step;
	uint32_t flag;
	bool deviates; /* not as planned: suspends the flow */
	bool of_step;  /* `step` holds something */
};
/* Number of the first message of a plan with a frontier that no ring told yet. */
uint64_t fc_plan_frontier(const struct fc_extractor *x, const struct fc_flow_plan *plan);
/* Does the plan say anything of its message `number`? A suspended one still holds for what
 * lies before the deviation. */
bool fc_plan_covers(const struct fc_flow_plan *plan, uint64_t number);
/* Which message of the plan `number` is; false of one that belongs to no step. */
bool fc_place_in_plan(const struct fc_flow_plan *plan, uint64_t number, uint64_t *nth);
/* The send that its message `nth` is, and the step of that; false: there is none. */
bool fc_send_in_plan(const struct fc_flow_plan *plan, uint64_t nth, uint64_t *send, uint64_t *step);
struct fc_decision fc_home_decide(const struct fc_extractor *x, const struct fc_message *m);
/* Notes the decision's traces in the plan and the counters. */
void fc_home_note(struct fc_extractor *x, const struct fc_message *m,
		  const struct fc_decision *decision);
void fc_home_set(struct fc_extractor *x, uint64_t position, uint64_t kind, uint64_t where,
		 uint64_t step);

#endif
