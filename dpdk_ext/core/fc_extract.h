/* The extractor of one ring: moves each marked packet to where its message belongs. Read by the
 * compiler and by cffi. */
#ifndef FC_EXTRACT_H
#define FC_EXTRACT_H

#include "fc_flow_api.h"
#include "fc_ring_api.h"
#include "fc_shard.h"
#include "fc_staging.h"

struct fc_extractor;

/* Opens an extractor and undoes what a killed one had not committed. `shard` may be NULL and be
 * set later. `block`: for file sources, stop before a message that cannot be staged, instead of
 * dropping it. All arguments must outlive the extractor. */
int fc_extractor_open(struct fc_ring *ring, const struct fc_flows *flows,
		      struct fc_staging *staging, struct fc_shard *shard, int block,
		      struct fc_extractor **out);
void fc_extractor_close(struct fc_extractor *x);
/* The ring's number among those of a run, below FC_RING_UNKNOWN. */
void fc_extractor_number(struct fc_extractor *x, uint64_t ring);
void fc_extractor_use_shard(struct fc_extractor *x, struct fc_shard *shard);

/* Extracts up to `limit` slots and commits them in spans. Returns the released slots; fewer than
 * available if staging is full and the source can wait, or before the first message of a step that
 * has no generation yet and could have one. */
int64_t fc_extract_span(struct fc_extractor *x, uint64_t limit);
/* 1: the last span stopped because staging was full. */
int fc_extract_stalled(const struct fc_extractor *x);
/* The last step of which a message came that has no generation; 0: none did. */
uint64_t fc_extract_wanted_step(const struct fc_extractor *x);
/* From now on messages that cannot be staged are dropped and counted. */
void fc_extract_unblock(struct fc_extractor *x);

/* Copies the tables of one flow into shared memory and sets its plan. In `plan`, first_at and
 * each_at are relative to `sends`, whose segments count from 0. Returns -EINVAL if they contradict
 * each other or the shard, -ENOSPC if they do not fit. */
int fc_plan_install(struct fc_extractor *x, uint32_t flow, const struct fc_flow_plan *plan,
		    const struct fc_send *sends, uint64_t sends_count,
		    const struct fc_segment *segments, uint64_t segments_count);
/* Appends a skip to the plan of a flow and activates the plan. Returns -EINVAL if the flow has no
 * plan, or if the skip begins before the last one. */
int fc_plan_skip(struct fc_extractor *x, uint32_t flow, const struct fc_skip *skip);
/* Reactivates a suspended plan without changes. */
int fc_plan_resume(struct fc_extractor *x, uint32_t flow);
/* Index in the plan of message `number`; UINT64_MAX: it belongs to no step. */
uint64_t fc_plan_place(const struct fc_extractor *x, uint32_t flow, uint64_t number);
/* Step (as the shard counts them) of the packet with unwrapped PSN `psn` of a flow, even if it
 * never arrived; 0: unknown or none. For any process that has both files open. */
uint64_t fc_step_at(const struct fc_flows *flows, const struct fc_staging *staging, uint32_t flow,
		    uint64_t psn);
/* Frontier: number of the first message of a planned flow that no ring has reported yet. The
 * second function moves it to `number`; everything missing before is then known to be as planned.
 */
uint64_t fc_frontier(const struct fc_extractor *x, uint32_t flow);
int fc_frontier_pass(struct fc_extractor *x, uint32_t flow, uint64_t number);
/* Ignores further packets of placed messages: their steps are given up. */
void fc_ignore_placed(struct fc_extractor *x);
/* Removes all plans: packets are staged again, and the tables are free. */
void fc_plans_forget(struct fc_extractor *x);
/* Sets only the state: UNKNOWN, IGNORE or SUSPENDED. */
int fc_plan_set(struct fc_extractor *x, uint32_t flow, uint64_t state);

/* Moves a staged message to where its flow's plan places it now. Returns 1 if it left staging, 0
 * if it must stay. `number` replaces an unknown message number; UINT64_MAX: none. */
int fc_staged_place(struct fc_extractor *x, uint64_t record, uint64_t number);
/* The same for `count` messages in this order, until `limit_bytes` of payload have left staging.
 * Returns how many left; `*looked`: how many it came to. */
uint64_t fc_staged_place_many(struct fc_extractor *x, const uint64_t *records,
			      const uint64_t *numbers, uint64_t count, uint64_t limit_bytes,
			      uint64_t *looked);
/* Drops a staged message; its later packets are ignored. */
void fc_staged_release(struct fc_extractor *x, uint64_t record);
/* For one flow's packets in several rings: if this ring knows the message of packet `psn`,
 * delivers it as if it had arrived here and returns 1; else 0. `differs`: another copy in the ring
 * that kept it had other bytes. */
int fc_deliver_from_ring(struct fc_extractor *x, uint32_t flow, uint64_t psn,
			 const uint8_t *payload, uint32_t payload_bytes, int differs);
/* Drops a kept packet that another ring has delivered. */
void fc_orphan_delivered(struct fc_extractor *x, uint64_t orphan);
/* Number of the message that starts at `psn`, from this ring's record of it or of the message that
 * ends there; `closing`: it is the closing write of that one. UINT64_MAX: unknown. */
uint64_t fc_number_at(const struct fc_extractor *x, uint32_t flow, uint64_t psn, int closing);
/* Number of the message behind the last one before `psn` whose number is known, and in `stop` the
 * PSN at which that one would start. UINT64_MAX: there is none. */
uint64_t fc_number_before(const struct fc_extractor *x, uint32_t flow, uint64_t psn,
			  uint64_t *stop);
/* Updates a staged message with what the parser knows about it now. */
void fc_staged_refresh(struct fc_extractor *x, uint64_t record);
/* The same for every staged message. */
void fc_staged_refresh_all(struct fc_extractor *x);

#endif
