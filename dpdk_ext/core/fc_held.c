/* Packets whose message is not known: each in a place of its own until it is. */
#include "fc_staging_ops.h"

/* So far behind what its flow sends by now a packet's message never comes. */
#define PSN_FAR_BEHIND 65536

static bool is_followed(const struct fc_extractor *x, uint64_t flow)
{
	const uint64_t state = x->staging->plans[flow].state;

	return state == FC_PLAN_ACTIVE || state == FC_PLAN_SUSPENDED;
}

uint64_t fc_held_find(const struct fc_extractor *x, uint64_t from, uint64_t flow, uint64_t start,
		      uint64_t stop)
{
	const struct fc_staging_header *h = x->staging->header;

	for (uint64_t i = from; h->held_used && i < h->held_max; i++) {
		const struct fc_held *held = &x->staging->held[i];
		if (held->used && held->flow == flow && held->psn >= start && held->psn < stop)
			return i;
	}
	return UINT64_MAX;
}

void fc_held_release(struct fc_extractor *x, uint64_t index)
{
	struct fc_staging_header *h = x->staging->header;

	x->place_freed[index] = x->change;
	x->freed = true;
	fc_set(x, &x->staging->held[index].used, 0);
	fc_set(x, &h->held_used, h->held_used - 1);
}

void fc_held_ignore(struct fc_extractor *x, uint64_t flow)
{
	uint64_t i = 0;

	while ((i = fc_held_find(x, i, flow, 0, UINT64_MAX)) != UINT64_MAX) {
		fc_held_release(x, i);
		x->counters->ignored_packets++;
	}
}

/* The place of a copy with as many bytes; UINT64_MAX: there is none. */
static uint64_t find_copy(const struct fc_extractor *x, const struct fc_piece *piece)
{
	uint64_t i = 0;

	while ((i = fc_held_find(x, i, piece->flow, piece->psn, piece->psn + 1)) != UINT64_MAX &&
	       x->staging->held[i].payload_bytes != piece->payload_bytes)
		i++;
	return i;
}

/* A place that was free under the last commit too; UINT64_MAX: there is none. */
static uint64_t find_place(const struct fc_extractor *x)
{
	const struct fc_staging_header *h = x->staging->header;

	for (uint64_t i = 0; h->held_used < h->held_max && i < h->held_max; i++)
		if (!x->staging->held[i].used && x->place_freed[i] != x->change)
			return i;
	return UINT64_MAX;
}

/* Is `a` to go before `b`, for room? What no plan follows first, then what two copies did
 * not differ on, which keeps a step from being whole; then the oldest. */
static bool goes_before(const struct fc_extractor *x, const struct fc_held *a,
			const struct fc_held *b)
{
	const bool followed = is_followed(x, a->flow);

	if (followed != is_followed(x, b->flow))
		return !followed;
	if (a->differs != b->differs)
		return !a->differs;
	return a->order < b->order;
}

/* Who is to go so that `piece` finds room, every place being taken; UINT64_MAX: nobody. */
static uint64_t find_victim(const struct fc_extractor *x, const struct fc_piece *piece)
{
	const struct fc_held *held = x->staging->held;
	uint64_t chosen = UINT64_MAX;

	if (piece->psn >= PSN_FAR_BEHIND)
		chosen = fc_held_find(x, 0, piece->flow, 0, piece->psn - PSN_FAR_BEHIND);
	if (chosen != UINT64_MAX)
		return chosen;
	for (uint64_t i = 0; i < x->staging->header->held_max; i++)
		if (chosen == UINT64_MAX || goes_before(x, &held[i], &held[chosen]))
			chosen = i;
	if (chosen != UINT64_MAX && is_followed(x, held[chosen].flow) &&
	    (held[chosen].differs || !is_followed(x, piece->flow)))
		return UINT64_MAX;
	return chosen;
}

static bool give_up(struct fc_extractor *x, const struct fc_piece *piece)
{
	const uint64_t victim = find_victim(x, piece);

	if (victim == UINT64_MAX)
		return false;
	fc_held_release(x, victim);
	x->counters->orphan_dropped_packets++;
	x->counters->held_given_up_packets++;
	return true;
}

enum fc_slot_end fc_hold_packet(struct fc_extractor *x, const struct fc_piece *piece, bool doubted)
{
	struct fc_staging_header *h = x->staging->header;

	if (x->staging->plans[piece->flow].state == FC_PLAN_IGNORE) {
		x->counters->ignored_packets++;
		return FC_SLOT_DONE;
	}
	const uint64_t copy = find_copy(x, piece);
	if (copy != UINT64_MAX) {
		if (!fc_compare_copy(x, x->staging->held_data + copy * FC_HELD_BYTES, piece))
			fc_set(x, &x->staging->held[copy].differs, 1);
		return FC_SLOT_DONE;
	}
	const uint64_t index = find_place(x);
	if (index == UINT64_MAX) {
		if (h->held_used < h->held_max || give_up(x, piece))
			return FC_SLOT_NEEDS_COMMIT;
		x->counters->orphan_dropped_packets++;
		return FC_SLOT_DONE;
	}
	struct fc_held *held = &x->staging->held[index];
	memcpy(x->staging->held_data + index * FC_HELD_BYTES, piece->payload, piece->payload_bytes);
	fc_set(x, &held->flow, piece->flow);
	fc_set(x, &held->psn, piece->psn);
	fc_set(x, &held->payload_bytes, piece->payload_bytes);
	fc_set(x, &held->order, h->held_ever + 1);
	fc_set(x, &held->differs, doubted);
	fc_set(x, &held->used, 1);
	fc_set(x, &h->held_ever, h->held_ever + 1);
	fc_set(x, &h->held_used, h->held_used + 1);
	x->counters->held_packets++;
	return FC_SLOT_DONE;
}
