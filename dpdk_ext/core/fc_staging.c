#include "fc_staging.h"

#include <errno.h>

#include "fc_common.h"
#include "fc_error.h"
#include "fc_staging_ops.h"

static const uint8_t staging_magic[8] = "FCSTAGE";

_Static_assert(sizeof(struct fc_placement) == 32, "two placements a line");
_Static_assert(sizeof(struct fc_staged) % 8 == 0 && sizeof(struct fc_message) % 8 == 0,
	       "records are words");
_Static_assert(offsetof(struct fc_staging_header, journal_base) % 128 == 0, "lines of their own");
_Static_assert(sizeof(struct fc_staging_header) <= 4096, "the header fits its page");
_Static_assert(sizeof(struct fc_flow_plan) == 576 && sizeof(struct fc_send) == 16 &&
		       sizeof(struct fc_segment) == 16,
	       "tables numpy writes too");

#define COUNT_MAX (1ull << 32)
#define DATA_BYTES_MAX (1ull << 44)

struct layout {
	uint64_t plans, sends, segments, placements, records, orphans, orphan_data, others,
		other_data, journal, data, end;
};

static uint64_t after(uint64_t offset, uint64_t count, uint64_t bytes)
{
	return (offset + count * bytes + 4095) & ~4095ull;
}

static struct layout layout_for(const struct fc_staging_sizes *s)
{
	struct layout at = { .plans = 4096 };

	at.sends = after(at.plans, FC_FLOWS_MAX, sizeof(struct fc_flow_plan));
	at.segments = after(at.sends, s->sends, sizeof(struct fc_send));
	at.placements = after(at.segments, s->segments, sizeof(struct fc_segment));
	at.records = after(at.placements, s->messages, sizeof(struct fc_placement));
	at.orphans = after(at.records, s->records, sizeof(struct fc_staged));
	at.orphan_data = after(at.orphans, s->orphans, sizeof(struct fc_orphan));
	at.others = after(at.orphan_data, s->orphans, FC_ORPHAN_BYTES);
	at.other_data = after(at.others, FC_OTHER_COPIES, sizeof(struct fc_other_copy));
	at.journal = after(at.other_data, FC_OTHER_COPIES, FC_ORPHAN_BYTES);
	at.data = after(at.journal, FC_JOURNAL_ENTRIES, sizeof(struct fc_journal_entry));
	at.end = after(at.data, s->data_bytes, 1);
	return at;
}

static int check_sizes(const struct fc_staging_sizes *s)
{
	if (s->messages < 4 || s->messages > COUNT_MAX || (s->messages & (s->messages - 1)))
		return fc_fail(EINVAL, STAGING_RECORDS_REFUSED, .numbers = { s->messages });
	if (s->records < 1 || s->records > COUNT_MAX || s->orphans > FC_JOURNAL_PACKET / 2 ||
	    s->sends > COUNT_MAX || s->segments > COUNT_MAX || s->data_bytes < 4096 ||
	    s->data_bytes > DATA_BYTES_MAX)
		return fc_fail(EINVAL, STAGING_SIZES_REFUSED,
			       .numbers = { s->data_bytes, s->records });
	return 0;
}

static void attach(struct fc_staging *staging)
{
	uint8_t *base = staging->map.base;
	const struct fc_staging_header *h = (const struct fc_staging_header *)base;

	staging->header = (struct fc_staging_header *)base;
	staging->plans = (struct fc_flow_plan *)(base + h->plans_offset);
	staging->sends = (struct fc_send *)(base + h->sends_offset);
	staging->segments = (struct fc_segment *)(base + h->segments_offset);
	staging->placements = (struct fc_placement *)(base + h->placements_offset);
	staging->records = (struct fc_staged *)(base + h->records_offset);
	staging->orphans = (struct fc_orphan *)(base + h->orphans_offset);
	staging->orphan_data = base + h->orphan_data_offset;
	staging->others = (struct fc_other_copy *)(base + h->others_offset);
	staging->other_data = base + h->other_data_offset;
	staging->journal = (struct fc_journal_entry *)(base + h->journal_offset);
	staging->data = base + h->data_offset;
	staging->mask = h->messages - 1;
}

static void describe(struct fc_staging_header *h, const struct fc_staging_sizes *s)
{
	const struct layout at = layout_for(s);

	h->layout_version = FC_STAGING_VERSION;
	h->flows_max = FC_FLOWS_MAX;
	h->messages = s->messages;
	h->records_max = s->records;
	h->orphans_max = s->orphans;
	h->sends_max = s->sends;
	h->segments_max = s->segments;
	h->journal_max = FC_JOURNAL_ENTRIES;
	h->data_bytes = s->data_bytes;
	h->plans_offset = at.plans;
	h->sends_offset = at.sends;
	h->segments_offset = at.segments;
	h->placements_offset = at.placements;
	h->records_offset = at.records;
	h->orphans_offset = at.orphans;
	h->orphan_data_offset = at.orphan_data;
	h->others_offset = at.others;
	h->other_data_offset = at.other_data;
	h->journal_offset = at.journal;
	h->data_offset = at.data;
}

int fc_staging_create(const char *path, const struct fc_staging_sizes *sizes,
		      struct fc_staging *out)
{
	memset(out, 0, sizeof *out);
	int code = check_sizes(sizes);
	if (code < 0)
		return code;
	code = fc_map_create(path, layout_for(sizes).end, &out->map);
	if (code < 0)
		return code;
	struct fc_staging_header *header = (struct fc_staging_header *)out->map.base;
	describe(header, sizes);
	header->file_bytes = out->map.bytes;
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(header->magic, staging_magic, sizeof staging_magic);
	attach(out);
	return 0;
}

static int check_header(const struct fc_staging_header *h, uint64_t mapped, const char *path)
{
	if (mapped < 4096 || memcmp(h->magic, staging_magic, sizeof staging_magic))
		return fc_fail(EINVAL, NOT_A_STAGING_FILE, .texts = { path });
	if (h->layout_version != FC_STAGING_VERSION)
		return fc_fail(EPROTO, OTHER_LAYOUT_VERSION, .texts = { path },
			       .numbers = { h->layout_version, FC_STAGING_VERSION });
	const struct fc_staging_sizes sizes = {
		.messages = h->messages,
		.data_bytes = h->data_bytes,
		.records = h->records_max,
		.orphans = h->orphans_max,
		.sends = h->sends_max,
		.segments = h->segments_max,
	};
	const int code = check_sizes(&sizes);
	if (code < 0)
		return code;
	struct fc_staging_header want = { 0 };
	describe(&want, &sizes);
	if (memcmp(&want.plans_offset, &h->plans_offset, 11 * sizeof(uint64_t)) ||
	    h->flows_max != FC_FLOWS_MAX || h->journal_max != FC_JOURNAL_ENTRIES ||
	    h->file_bytes != mapped || layout_for(&sizes).end > mapped ||
	    h->journal_used > h->journal_max)
		return fc_fail(EINVAL, SIZES_CONTRADICT, .texts = { path }, .numbers = { mapped });
	return 0;
}

int fc_staging_open(const char *path, struct fc_staging *out)
{
	memset(out, 0, sizeof *out);
	int code = fc_map_open(path, 1, &out->map);
	if (code < 0)
		return code;
	code = check_header((const struct fc_staging_header *)out->map.base, out->map.bytes, path);
	if (code < 0) {
		fc_map_close(&out->map);
		return code;
	}
	attach(out);
	return 0;
}

void fc_staging_close(struct fc_staging *staging)
{
	fc_map_close(&staging->map);
	memset(staging, 0, sizeof *staging);
}

static uint64_t pmtu_of(const struct fc_message *m)
{
	/* A single packet: its size is the message's, whatever the path MTU. */
	return m->packets > 1 ? m->pmtu_bytes : m->length_bytes;
}

int fc_staged_next_missing(const struct fc_staging *staging, uint64_t record, uint64_t from,
			   uint64_t *start, uint64_t *stop)
{
	const struct fc_staged *r = &staging->records[record];
	const uint64_t *bitmap = (const uint64_t *)(staging->data + r->block_at);
	const uint64_t length = r->message.length_bytes;
	const uint64_t pmtu = pmtu_of(&r->message);

	if (from >= length)
		return 0;
	for (uint64_t packet = from / pmtu; packet < r->message.packets; packet++) {
		if (bitmap[packet / 64] >> (packet % 64) & 1)
			continue;
		*start = packet * pmtu > from ? packet * pmtu : from;
		while (packet < r->message.packets && !(bitmap[packet / 64] >> (packet % 64) & 1))
			packet++;
		*stop = packet * pmtu < length ? packet * pmtu : length;
		return *start < *stop;
	}
	return 0;
}

void fc_staged_read(const struct fc_staging *staging, uint64_t record, uint8_t *out)
{
	const struct fc_staged *r = &staging->records[record];
	uint64_t start, stop = 0;

	memcpy(out, staging->data + r->block_at + r->bitmap_bytes, r->message.length_bytes);
	while (fc_staged_next_missing(staging, record, stop, &start, &stop))
		memset(out + start, 0, stop - start);
}
