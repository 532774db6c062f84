/* Packets whose message is not known yet, each in a place of its own. The index is in this
 * process's memory; a lookup costs the same for any number of places. */
#include <errno.h>

#include "fc_error.h"
#include "fc_staging_ops.h"

/* PSNs behind the newest one of its flow, beyond which the message of a packet never arrives. */
#define PSN_FAR_BEHIND 65536
/* log2 of the PSNs per bucket. */
#define PSN_SHIFT 6
#define BUCKETS 4096u

/* Order in which packets are dropped for room: those without a plan before those with one; of
 * both, packets whose copies differ last, because they keep a step from being exact. */
enum rank {
	RANK_STRANGE,
	RANK_STRANGE_DIFFERS,
	RANK_FOLLOWED,
	RANK_FOLLOWED_DIFFERS, /* never dropped */
	RANKS,
};

_Static_assert((int)RANKS == (int)FC_ORPHAN_RANKS, "a list for each rank");

static unsigned rank_of(const struct fc_extractor *x, const struct fc_orphan *orphan)
{
	return (fc_plan_follows(&x->staging->plans[orphan->flow]) ? 2u : 0u) +
	       (orphan->differs != 0);
}

static uint32_t *bucket_of(struct fc_extractor *x, uint64_t flow, uint64_t psn)
{
	const uint64_t mixed = (flow << 40 ^ psn >> PSN_SHIFT) * 0x9e3779b97f4a7c15ull;

	return &x->orphans.buckets[mixed >> 52 & (BUCKETS - 1)];
}

static void enlist(struct fc_extractor *x, uint32_t index)
{
	struct fc_orphan_index *p = &x->orphans;
	struct fc_orphan_slot *own = &p->of[index];
	uint32_t newer = 0;

	own->rank = (uint8_t)rank_of(x, &x->staging->orphans[index]);
	uint32_t older = p->newest[own->rank];
	/* In order of arrival; the newest is the last, unless copies differ. */
	while (older && x->staging->orphans[older - 1].order > x->staging->orphans[index].order) {
		newer = older;
		older = p->of[older - 1].older;
	}
	own->older = older;
	own->newer = newer;
	*(older ? &p->of[older - 1].newer : &p->oldest[own->rank]) = index + 1;
	*(newer ? &p->of[newer - 1].older : &p->newest[own->rank]) = index + 1;
}

static void delist(struct fc_extractor *x, uint32_t index)
{
	struct fc_orphan_index *p = &x->orphans;
	const struct fc_orphan_slot *own = &p->of[index];

	*(own->older ? &p->of[own->older - 1].newer : &p->oldest[own->rank]) = own->newer;
	*(own->newer ? &p->of[own->newer - 1].older : &p->newest[own->rank]) = own->older;
}

static void find_by_psn(struct fc_extractor *x, uint32_t index)
{
	const struct fc_orphan *orphan = &x->staging->orphans[index];
	uint32_t *bucket = bucket_of(x, orphan->flow, orphan->psn);

	x->orphans.of[index].next = *bucket;
	*bucket = index + 1;
}

static void find_no_more(struct fc_extractor *x, uint32_t index)
{
	const struct fc_orphan *orphan = &x->staging->orphans[index];
	uint32_t *at = bucket_of(x, orphan->flow, orphan->psn);

	while (*at && *at != index + 1)
		at = &x->orphans.of[*at - 1].next;
	if (*at)
		*at = x->orphans.of[index].next;
}

/* Free places in the order in which they became free. */
static void put_free(struct fc_extractor *x, uint32_t index)
{
	struct fc_orphan_index *p = &x->orphans;

	p->free[(p->free_from + p->free_count++) % x->staging->header->orphans_max] = index;
}

static int by_order(const void *a, const void *b)
{
	const uint64_t x = (*(struct fc_orphan *const *)a)->order;
	const uint64_t y = (*(struct fc_orphan *const *)b)->order;

	return (x > y) - (x < y);
}

/* Rebuilds the lists of all kept packets by the present plans. */
static void rank_anew(struct fc_extractor *x)
{
	struct fc_orphan_index *p = &x->orphans;
	uint32_t count = 0;

	memset(p->oldest, 0, sizeof p->oldest);
	memset(p->newest, 0, sizeof p->newest);
	for (uint32_t i = 0; i < x->staging->header->orphans_max; i++)
		if (x->staging->orphans[i].used)
			p->sorted[count++] = &x->staging->orphans[i];
	qsort(p->sorted, count, sizeof(*p->sorted), by_order);
	for (uint32_t i = 0; i < count; i++)
		enlist(x, (uint32_t)(p->sorted[i] - x->staging->orphans));
	p->stale = false;
}

int fc_orphans_open(struct fc_extractor *x)
{
	struct fc_orphan_index *p = &x->orphans;
	const uint64_t places = x->staging->header->orphans_max;

	p->buckets = calloc(BUCKETS, sizeof *p->buckets);
	p->of = calloc(places + 1, sizeof *p->of);
	p->free = calloc(places + 1, sizeof *p->free);
	p->sorted = calloc(places + 1, sizeof(*p->sorted));
	if (!p->buckets || !p->of || !p->free || !p->sorted)
		return fc_fail(ENOMEM, EXTRACTOR_WITHOUT_MEMORY);
	for (uint32_t i = 0; i < places; i++) {
		if (x->staging->orphans[i].used)
			find_by_psn(x, i);
		else
			put_free(x, i);
	}
	rank_anew(x);
	return 0;
}

void fc_orphans_close(struct fc_extractor *x)
{
	free(x->orphans.buckets);
	free(x->orphans.of);
	free(x->orphans.free);
	free(x->orphans.sorted);
}

void fc_orphans_replanned(struct fc_extractor *x)
{
	x->orphans.stale = true;
}

uint64_t fc_orphan_find(struct fc_extractor *x, uint64_t flow, uint64_t start, uint64_t stop)
{
	const struct fc_staging_header *h = x->staging->header;
	const struct fc_orphan *all = x->staging->orphans;

	if (!h->orphans_used || start >= stop)
		return UINT64_MAX;
	/* A message with more PSNs than buckets: look at every place once. */
	if ((stop - start) >> PSN_SHIFT > h->orphans_max) {
		for (uint64_t i = 0; i < h->orphans_max; i++)
			if (all[i].used && all[i].flow == flow && all[i].psn >= start &&
			    all[i].psn < stop)
				return i;
		return UINT64_MAX;
	}
	for (uint64_t psn = start; psn < stop; psn = (psn >> PSN_SHIFT << PSN_SHIFT) + 64)
		for (uint32_t i = *bucket_of(x, flow, psn); i; i = x->orphans.of[i - 1].next)
			if (all[i - 1].flow == flow && all[i - 1].psn >= start &&
			    all[i - 1].psn < stop)
				return i - 1;
	return UINT64_MAX;
}

void fc_orphan_release(struct fc_extractor *x, uint64_t index)
{
	struct fc_staging_header *h = x->staging->header;

	x->orphan_freed[index] = x->change;
	x->freed = true;
	find_no_more(x, (uint32_t)index);
	delist(x, (uint32_t)index);
	put_free(x, (uint32_t)index);
	fc_set(x, &x->staging->orphans[index].used, 0);
	fc_set(x, &h->orphans_used, h->orphans_used - 1);
}

void fc_orphans_ignore(struct fc_extractor *x, uint64_t flow)
{
	for (uint64_t i = 0; i < x->staging->header->orphans_max; i++) {
		if (!x->staging->orphans[i].used || x->staging->orphans[i].flow != flow)
			continue;
		fc_orphan_release(x, i);
		x->counters->ignored_packets++;
	}
}

/* The place of a copy with the same number of bytes; UINT64_MAX: none. */
static uint64_t find_copy(struct fc_extractor *x, const struct fc_packet_payload *piece)
{
	const struct fc_orphan *all = x->staging->orphans;

	for (uint32_t i = *bucket_of(x, piece->flow, piece->psn); i; i = x->orphans.of[i - 1].next)
		if (all[i - 1].flow == piece->flow && all[i - 1].psn == piece->psn &&
		    all[i - 1].payload_bytes == piece->payload_bytes)
			return i - 1;
	return UINT64_MAX;
}

/* A place that was free at the last commit, too; UINT64_MAX: none. */
static uint64_t take_slot(struct fc_extractor *x)
{
	struct fc_orphan_index *p = &x->orphans;
	const uint32_t first = p->free[p->free_from];

	/* the others became free later */
	if (!p->free_count || x->orphan_freed[first] == x->change)
		return UINT64_MAX;
	p->free_from = (p->free_from + 1) % x->staging->header->orphans_max;
	p->free_count--;
	return first;
}

/* The packet to drop for `piece` when all places are used; UINT64_MAX: none. */
static uint64_t find_victim(struct fc_extractor *x, const struct fc_packet_payload *piece)
{
	const struct fc_orphan_index *p = &x->orphans;
	const unsigned last = fc_plan_follows(&x->staging->plans[piece->flow])
				      ? RANK_FOLLOWED
				      : RANK_STRANGE_DIFFERS;

	if (p->stale)
		rank_anew(x);
	for (unsigned rank = RANK_STRANGE; rank <= last; rank++)
		if (p->oldest[rank])
			return p->oldest[rank] - 1;
	/* All of them differ: drop copies whose message will never arrive. */
	for (uint32_t i = p->oldest[RANK_FOLLOWED_DIFFERS]; i; i = p->of[i - 1].newer) {
		const struct fc_orphan *orphan = &x->staging->orphans[i - 1];
		if (orphan->flow == piece->flow && orphan->psn + PSN_FAR_BEHIND < piece->psn)
			return i - 1;
	}
	return UINT64_MAX;
}

static bool give_up(struct fc_extractor *x, const struct fc_packet_payload *piece)
{
	const uint64_t victim = find_victim(x, piece);

	if (victim == UINT64_MAX)
		return false;
	fc_orphan_release(x, victim);
	x->counters->orphan_dropped_packets++;
	x->counters->held_given_up_packets++;
	return true;
}

/* Records that two copies of the kept packet differ. */
static void note_differs(struct fc_extractor *x, uint32_t index)
{
	if (x->staging->orphans[index].differs)
		return;
	delist(x, index);
	fc_set(x, &x->staging->orphans[index].differs, 1);
	enlist(x, index);
}

enum fc_slot_result fc_orphan_keep(struct fc_extractor *x, const struct fc_packet_payload *piece,
				   bool doubted)
{
	struct fc_staging_header *h = x->staging->header;

	if (x->staging->plans[piece->flow].state == FC_PLAN_IGNORE) {
		x->counters->ignored_packets++;
		return FC_SLOT_DONE;
	}
	const uint64_t copy = find_copy(x, piece);
	if (copy != UINT64_MAX) {
		if (!fc_compare_copy(x, x->staging->orphan_data + copy * FC_ORPHAN_BYTES, piece))
			note_differs(x, (uint32_t)copy);
		return FC_SLOT_DONE;
	}
	const uint64_t index = take_slot(x);
	if (index == UINT64_MAX) {
		if (h->orphans_used < h->orphans_max || give_up(x, piece))
			return FC_SLOT_NEEDS_COMMIT;
		x->counters->orphan_dropped_packets++;
		return FC_SLOT_DONE;
	}
	struct fc_orphan *orphan = &x->staging->orphans[index];
	memcpy(x->staging->orphan_data + index * FC_ORPHAN_BYTES, piece->payload,
	       piece->payload_bytes);
	fc_set(x, &orphan->flow, piece->flow);
	fc_set(x, &orphan->psn, piece->psn);
	fc_set(x, &orphan->payload_bytes, piece->payload_bytes);
	fc_set(x, &orphan->order, h->orphans_ever + 1);
	fc_set(x, &orphan->differs, doubted);
	fc_set(x, &orphan->used, 1);
	fc_set(x, &h->orphans_ever, h->orphans_ever + 1);
	fc_set(x, &h->orphans_used, h->orphans_used + 1);
	find_by_psn(x, (uint32_t)index);
	enlist(x, (uint32_t)index);
	x->counters->held_packets++;
	return FC_SLOT_DONE;
}
