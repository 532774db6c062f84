/* Memory for staged messages: one block per message, of the length that the message states. Free
 * ranges are computed from the blocks in use (fc_free_ranges.c), so that after a kill only the
 * records have to be rolled back. The block of an incomplete message may be reclaimed for another
 * message. */
#include <errno.h>

#include "fc_error.h"
#include "fc_staging_ops.h"

#define BLOCK_ALIGN 64ull
/* Incomplete messages examined for one message, and most whose blocks are reclaimed at once. */
#define EXAMINED_MAX 256
#define RECLAIMED_MAX 16
/* For a message without a plan, only blocks of messages of which less than this fraction (1/8) has
 * arrived are reclaimed. */
#define ARRIVED_PART 8

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + BLOCK_ALIGN - 1) & ~(BLOCK_ALIGN - 1);
}

static int by_block(const void *a, const void *b)
{
	const struct fc_staged *x = *(struct fc_staged *const *)a;
	const struct fc_staged *y = *(struct fc_staged *const *)b;

	return (x->block_at > y->block_at) - (x->block_at < y->block_at);
}

static int by_position(const void *a, const void *b)
{
	const struct fc_staged *x = *(struct fc_staged *const *)a;
	const struct fc_staged *y = *(struct fc_staged *const *)b;

	return (x->message.position > y->message.position) -
	       (x->message.position < y->message.position);
}

static unsigned size_class(const struct fc_staged *r)
{
	return 63u - (unsigned)__builtin_clzll(r->block_bytes | 1);
}

static void incomplete_add(struct fc_extractor *x, uint64_t record)
{
	struct fc_incomplete_lists *c = &x->incomplete;
	const unsigned of = size_class(&x->staging->records[record]);
	const uint32_t name = (uint32_t)record + 1;

	c->older[record] = c->newest[of];
	c->newer[record] = 0;
	if (c->newest[of])
		c->newer[c->newest[of] - 1] = name;
	else
		c->oldest[of] = name;
	c->newest[of] = name;
	c->in_class[record] = (uint8_t)(of + 1);
}

void fc_incomplete_end(struct fc_extractor *x, uint64_t record)
{
	struct fc_incomplete_lists *c = &x->incomplete;
	const uint32_t older = c->older[record], newer = c->newer[record];

	if (!c->in_class[record])
		return;
	const unsigned of = c->in_class[record] - 1u;
	*(older ? &c->newer[older - 1] : &c->oldest[of]) = newer;
	*(newer ? &c->older[newer - 1] : &c->newest[of]) = older;
	c->in_class[record] = 0;
}

/* Computes the free ranges between the blocks in use. `used` is sorted by block. */
static int free_between(struct fc_extractor *x, struct fc_staged **used, uint64_t count)
{
	const uint64_t all = x->staging->header->data_bytes & ~(BLOCK_ALIGN - 1);
	uint64_t at = 0;

	for (uint64_t i = 0; i < count; i++) {
		const uint64_t bytes = used[i]->block_bytes;
		if (used[i]->block_at < at || used[i]->block_at > all ||
		    bytes > all - used[i]->block_at)
			return fc_fail(EINVAL, STAGED_BLOCKS_OVERLAP);
		fc_free_ranges_add(&x->free_ranges, at, used[i]->block_at - at);
		at = used[i]->block_at + bytes;
	}
	fc_free_ranges_add(&x->free_ranges, at, all - at);
	return 0;
}

static bool open_incomplete(struct fc_incomplete_lists *c, uint64_t records)
{
	c->older = calloc(records, sizeof *c->older);
	c->newer = calloc(records, sizeof *c->newer);
	c->in_class = calloc(records, sizeof *c->in_class);
	return c->older && c->newer && c->in_class;
}

int fc_blocks_open(struct fc_extractor *x)
{
	const struct fc_staging_header *h = x->staging->header;
	const uint64_t records = h->records_max;
	struct fc_staged **used = calloc(h->records_used + 1, sizeof(*used));
	uint64_t count = 0;

	x->freed_blocks = calloc(FC_JOURNAL_ENTRIES, sizeof *x->freed_blocks);
	if (!used || !x->freed_blocks || !open_incomplete(&x->incomplete, records) ||
	    !fc_free_ranges_open(&x->free_ranges, (uint32_t)records + 1)) {
		free(used);
		return fc_fail(ENOMEM, EXTRACTOR_WITHOUT_MEMORY);
	}
	for (uint64_t i = 0; i < h->records_used && i < records; i++)
		if (x->staging->records[i].state)
			used[count++] = &x->staging->records[i];
	qsort(used, count, sizeof(*used), by_block);
	const int code = free_between(x, used, count);
	qsort(used, count, sizeof(*used), by_position);
	for (uint64_t i = 0; i < count; i++)
		if (!used[i]->completed)
			incomplete_add(x, (uint64_t)(used[i] - x->staging->records));
	free(used);
	return code;
}

void fc_blocks_close(struct fc_extractor *x)
{
	fc_free_ranges_close(&x->free_ranges);
	free(x->freed_blocks);
	free(x->incomplete.older);
	free(x->incomplete.newer);
	free(x->incomplete.in_class);
}

void fc_blocks_settle(struct fc_extractor *x)
{
	for (uint64_t i = 0; i < x->freed_blocks_used; i++)
		fc_free_ranges_give_back(&x->free_ranges, x->freed_blocks[i].at,
					 x->freed_blocks[i].bytes);
	x->freed_blocks_used = 0;
}

static int block_allocate(struct fc_extractor *x, uint64_t bytes, uint64_t *at)
{
	struct fc_staging_header *h = x->staging->header;

	if (!fc_free_ranges_allocate(&x->free_ranges, bytes, at))
		return -ENOSPC;
	if (*at + bytes > h->data_used)
		fc_set(x, &h->data_used, *at + bytes);
	fc_set(x, &h->data_in_use, h->data_in_use + bytes);
	return 0;
}

void fc_block_free(struct fc_extractor *x, uint64_t at, uint64_t bytes)
{
	struct fc_staging_header *h = x->staging->header;

	x->freed = true;
	x->freed_blocks[x->freed_blocks_used++] = (struct fc_freed_block){ at, bytes };
	fc_set(x, &h->data_in_use, h->data_in_use - bytes);
}

static uint64_t bitmap_bytes(const struct fc_message *m)
{
	return ((uint64_t)m->packets + 511) / 512 * 64;
}

static uint64_t block_bytes(const struct fc_message *m)
{
	return round_up(bitmap_bytes(m) + m->length_bytes);
}

bool fc_record_fits(const struct fc_extractor *x, const struct fc_message *m)
{
	return block_bytes(m) <= x->staging->header->data_bytes;
}

bool fc_record_block(struct fc_extractor *x, struct fc_staged *r, const struct fc_message *m)
{
	const uint64_t bitmap = bitmap_bytes(m), bytes = block_bytes(m);
	const uint64_t record = (uint64_t)(r - x->staging->records);
	uint64_t at;

	if (block_allocate(x, bytes, &at))
		return false;
	/* The block is free under the last commit, so the journal is not needed. */
	memset(x->staging->data + at, 0, bitmap);
	fc_set(x, &r->block_at, at);
	fc_set(x, &r->block_bytes, bytes);
	fc_set(x, &r->bitmap_bytes, bitmap);
	fc_incomplete_end(x, record);
	incomplete_add(x, record);
	return true;
}

uint64_t fc_record_allocate(struct fc_extractor *x, const struct fc_message *m)
{
	struct fc_staging_header *h = x->staging->header;
	const bool reuse = h->records_free != 0;
	const uint64_t record = reuse ? h->records_free - 1 : h->records_used;

	if (!reuse && h->records_used == h->records_max)
		return UINT64_MAX;
	struct fc_staged *r = &x->staging->records[record];
	if (!fc_record_block(x, r, m))
		return UINT64_MAX;
	if (reuse)
		fc_set(x, &h->records_free, r->next);
	else
		fc_set(x, &h->records_used, record + 1);
	fc_set(x, &h->records_in_use, h->records_in_use + 1);
	fc_set(x, &r->packets_seen, 0);
	fc_set(x, &r->completed, 0);
	fc_set(x, &r->conflict_from, 0);
	fc_set(x, &r->conflict_stop, 0);
	fc_record_describe(x, r, m);
	fc_set(x, &r->state, 1);
	return record;
}

void fc_record_free(struct fc_extractor *x, uint64_t record)
{
	struct fc_staging_header *h = x->staging->header;
	struct fc_staged *r = &x->staging->records[record];

	fc_incomplete_end(x, record);
	fc_other_copies_free(x, r->message.position);
	fc_set(x, &r->state, 0);
	fc_block_free(x, r->block_at, r->block_bytes);
	fc_set(x, &r->next, h->records_free);
	fc_set(x, &h->records_free, record + 1);
	fc_set(x, &h->records_in_use, h->records_in_use - 1);
}

void fc_record_describe(struct fc_extractor *x, struct fc_staged *r, const struct fc_message *m)
{
	struct fc_message told = *m;
	uint64_t words[sizeof told / 8];
	uint64_t *kept = (uint64_t *)&r->message;

	if (m->flow < FC_FLOWS_MAX)
		fc_number_in_run(&x->staging->plans[m->flow], &told);
	memcpy(words, &told, sizeof words);
	for (size_t i = 0; i < sizeof words / 8; i++)
		if (kept[i] != words[i])
			fc_set(x, &kept[i], words[i]);
}

/* Whether the message belongs to a flow with a plan, and the parser does not suspect that it is
 * forged. */
static bool is_followed(const struct fc_extractor *x, const struct fc_message *m)
{
	struct fc_message now;

	if (!fc_plan_follows(&x->staging->plans[m->flow]))
		return false;
	return !fc_flows_message(x->flows, m->position, &now) ||
	       now.standing != FC_STANDING_UNPROVEN;
}

static bool may_be_reclaimed(const struct fc_extractor *x, const struct fc_staged *r,
			     const struct fc_message *m, bool followed)
{
	if (r->message.position == m->position || is_followed(x, &r->message))
		return false;
	return followed || (r->block_bytes >= block_bytes(m) &&
			    r->packets_seen * ARRIVED_PART < r->message.packets);
}

static void reclaim(struct fc_extractor *x, uint64_t record)
{
	const struct fc_staged *r = &x->staging->records[record];
	const uint64_t position = r->message.position;

	x->counters->claims_given_up_packets += r->packets_seen;
	fc_record_free(x, record);
	if (x->staging->placements[position & x->staging->mask].position == position)
		fc_placement_set(x, position, FC_PLACEMENT_DROPPED, 0, 0);
}

bool fc_incomplete_reclaim(struct fc_extractor *x, const struct fc_message *m)
{
	const bool followed = is_followed(x, m);
	unsigned looked = 0, gone = 0;
	uint64_t bytes = 0;

	if (!followed && x->block && !x->ring->header->live_source)
		return false; /* the file source waits for room */
	/* The longest blocks first; of equal size classes the oldest. */
	for (unsigned of = 64; of-- > 0;) {
		uint32_t next = x->incomplete.oldest[of];
		while (next && looked++ < EXAMINED_MAX && gone < RECLAIMED_MAX &&
		       bytes < block_bytes(m)) {
			const uint64_t record = next - 1;
			const struct fc_staged *r = &x->staging->records[record];
			next = x->incomplete.newer[record];
			if (!may_be_reclaimed(x, r, m, followed))
				continue;
			bytes += r->block_bytes;
			gone++;
			reclaim(x, record);
		}
	}
	return gone;
}
