/* The extractor of one ring: every marked packet to the home of its message.
 * Read by the compiler and by cffi. */
#ifndef FC_EXTRACT_H
#define FC_EXTRACT_H

#include "fc_flow_api.h"
#include "fc_ring_api.h"
#include "fc_shard.h"
#include "fc_staging.h"

struct fc_extractor;

/* Takes back what a killed extractor had not committed. `shard` may be NULL, and
 * be given later. `block`: where a file is the source, stop before a message that
 * cannot be staged instead of dropping it. All must outlive the extractor. */
int fc_extractor_open(struct fc_ring *ring, const struct fc_flows *flows,
		      struct fc_staging *staging, struct fc_shard *shard, int block,
		      struct fc_extractor **out);
void fc_extractor_close(struct fc_extractor *x);
void fc_extractor_use_shard(struct fc_extractor *x, struct fc_shard *shard);

/* Extracts up to `limit` slots and commits them in spans. Returns the slots
 * released, fewer than there are when staging is full and the source can wait. */
int64_t fc_extract_span(struct fc_extractor *x, uint64_t limit);
/* 1 if the last span stopped because staging was full. */
int fc_extract_stalled(const struct fc_extractor *x);
/* From now on messages that cannot be staged are dropped and counted. */
void fc_extract_unblock(struct fc_extractor *x);

/* Copies the tables of one flow into shared memory and sets its plan; `plan` has
 * first_at and each_at relative to `sends`, which name `segments` from 0. -EINVAL
 * where they contradict each other or the shard; -ENOSPC where they do not fit. */
int fc_plan_install(struct fc_extractor *x, uint32_t flow, const struct fc_flow_plan *plan,
		    const struct fc_send *sends, uint64_t sends_count,
		    const struct fc_segment *segments, uint64_t segments_count);
/* Appends a skip to the plan of one flow and makes it active; -EINVAL where it has
 * no plan, or the skip lies before the last one. */
int fc_plan_skip(struct fc_extractor *x, uint32_t flow, const struct fc_skip *skip);
/* Takes a suspended plan up again, as it is. */
int fc_plan_resume(struct fc_extractor *x, uint32_t flow);
/* Which message of its plan `number` is; UINT64_MAX: it belongs to no step. */
uint64_t fc_plan_place(const struct fc_extractor *x, uint32_t flow, uint64_t number);
/* The shard's step that the packet with unwrapped PSN `psn` of a flow is of, also where it
 * never came; 0: of none that is known. For any process that has both files open. */
uint64_t fc_step_at(const struct fc_flows *flows, const struct fc_staging *staging, uint32_t flow,
		    uint64_t psn);
/* The number of the first message of a planned flow that no ring told yet, and its move
 * to `number`: what is missing before that is known to be as planned. */
uint64_t fc_frontier(const struct fc_extractor *x, uint32_t flow);
int fc_frontier_pass(struct fc_extractor *x, uint32_t flow, uint64_t number);
/* What still comes of messages that were placed is ignored: their steps are given up. */
void fc_homes_close(struct fc_extractor *x);
/* No flow has a plan any more, what comes is staged again, and the tables are free. */
void fc_plans_forget(struct fc_extractor *x);
/* Sets the state alone: UNKNOWN, IGNORE or SUSPENDED. */
int fc_plan_set(struct fc_extractor *x, uint32_t flow, uint64_t state);

/* Gives a staged message the home its flow's plan has for it by now. Returns 1 if
 * it is staged no more, 0 if it must stay. `number` replaces one that transport
 * did not know; UINT64_MAX: none. */
int fc_staged_place(struct fc_extractor *x, uint64_t record, uint64_t number);
/* Forgets a staged message; later packets of it are ignored. */
void fc_staged_release(struct fc_extractor *x, uint64_t record);
/* One flow's packets over several rings. 1 if this ring knows the message of packet
 * `psn`, which then goes to the message's home as if it had come here; else 0. `differs`: so
 * did another copy that came to the ring which held it. */
int fc_adopt_packet(struct fc_extractor *x, uint32_t flow, uint64_t psn, const uint8_t *payload,
		    uint32_t payload_bytes, int differs);
/* Forgets a held packet that another ring adopted. */
void fc_adopted(struct fc_extractor *x, uint64_t held);
/* The number of a message that starts at `psn`, told by this ring's record of it or
 * of the one that ends there; `closing`: it closes that one. UINT64_MAX: not known. */
uint64_t fc_number_at(const struct fc_extractor *x, uint32_t flow, uint64_t psn, int closing);
/* Takes what the parser knows by now of the message. */
void fc_staged_refresh(struct fc_extractor *x, uint64_t record);

#endif
