/* Room for staged messages: size classes with a free list each, four to a power
 * of two, cut from the data region and never joined again: a job sends the same
 * sizes for ever. */
#include <errno.h>

#include "fc_staging_ops.h"

static uint64_t class_bytes(uint64_t size_class)
{
	return (4 + size_class % 4) << (size_class / 4 + 4);
}

static uint64_t class_of(uint64_t bytes)
{
	uint64_t size_class = 0;

	if (bytes > 64)
		size_class = 4 * (63 - (uint64_t)__builtin_clzll(bytes) - 6);
	while (class_bytes(size_class) < bytes)
		size_class++;
	return size_class;
}

int fc_block_take(struct fc_extractor *x, uint64_t bytes, uint64_t *at, uint64_t *size_class)
{
	struct fc_staging_header *h = x->staging->header;
	const uint64_t chosen = class_of(bytes);
	const uint64_t size = class_bytes(chosen);

	uint64_t *link = &h->blocks_free[chosen];
	/* Blocks of this change come first on the list, the first of them last: behind it
	 * lies what was free before. */
	if (x->given[chosen])
		link = (uint64_t *)(x->staging->data + x->given[chosen] - 1);
	if (*link) {
		*at = *link - 1;
		uint64_t *next = (uint64_t *)(x->staging->data + *at);
		fc_set(x, link, *next);
		fc_set(x, next, 0); /* the link must come back with the block */
	} else if (size <= h->data_bytes - h->data_used) {
		*at = h->data_used;
		fc_set(x, &h->data_used, h->data_used + size);
	} else {
		return -ENOSPC;
	}
	fc_set(x, &h->data_held, h->data_held + size);
	*size_class = chosen;
	return 0;
}

void fc_block_give(struct fc_extractor *x, uint64_t at, uint64_t size_class)
{
	struct fc_staging_header *h = x->staging->header;

	if (!x->given[size_class])
		x->given[size_class] = at + 1;
	x->freed = x->gave_blocks = true;
	fc_set(x, (uint64_t *)(x->staging->data + at), h->blocks_free[size_class]);
	fc_set(x, &h->blocks_free[size_class], at + 1);
	fc_set(x, &h->data_held, h->data_held - class_bytes(size_class));
}

static uint64_t bitmap_bytes(const struct fc_message *m)
{
	return ((uint64_t)m->packets + 511) / 512 * 64;
}

bool fc_record_block(struct fc_extractor *x, struct fc_staged *r, const struct fc_message *m)
{
	const uint64_t bitmap = bitmap_bytes(m);
	uint64_t at, size_class;

	if (fc_block_take(x, bitmap + m->length_bytes, &at, &size_class))
		return false;
	/* Word 0 is 0 already and journalled; the others mean nothing while free. */
	memset(x->staging->data + at, 0, bitmap);
	fc_set(x, &r->block_at, at);
	fc_set(x, &r->block_class, size_class);
	fc_set(x, &r->bitmap_bytes, bitmap);
	return true;
}

uint64_t fc_record_take(struct fc_extractor *x, const struct fc_message *m)
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
	fc_set(x, &h->records_held, h->records_held + 1);
	fc_set(x, &r->packets_seen, 0);
	fc_set(x, &r->completed, 0);
	fc_set(x, &r->conflict_from, 0);
	fc_set(x, &r->conflict_stop, 0);
	fc_record_describe(x, r, m);
	fc_set(x, &r->state, 1);
	return record;
}

void fc_record_give(struct fc_extractor *x, uint64_t record)
{
	struct fc_staging_header *h = x->staging->header;
	struct fc_staged *r = &x->staging->records[record];

	fc_set(x, &r->state, 0);
	fc_block_give(x, r->block_at, r->block_class);
	fc_set(x, &r->next, h->records_free);
	fc_set(x, &h->records_free, record + 1);
	fc_set(x, &h->records_held, h->records_held - 1);
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
