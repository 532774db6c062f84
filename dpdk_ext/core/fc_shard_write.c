/* Writes bytes to the shard. Bytes that are there already are compared and never changed; of copies
 * that differ, the place and both are added to the generation's list. What is missing of a PARTIAL
 * generation stays so: the updater has it as it is. */
#include "fc_copy.h"
#include "fc_ll.h"
#include "fc_ll128.h"
#include "fc_nccl.h"
#include "fc_staging_ops.h"

#define WORD_UNITS 64

/* Most ranges that one doubted message adds to the list: beyond them its place is not told. A
 * choice; each takes two entries of the journal. */
#define DOUBTED_RANGES_MAX 1024

_Static_assert((int)FC_ORPHAN_BYTES >= (int)FC_LL128_GROUP_DATA, "the scratch holds a group");

/* A generation that is written, and the layout of its units. */
struct target {
	struct fc_extractor *x;
	const struct fc_packet_payload *piece; /* that is written; NULL: not a packet */
	struct fc_generation *generation;
	uint8_t *data, *differing;
	uint64_t *coverage;
	uint64_t units; /* units of the gradient; those after them are not waited for */
	uint32_t shift; /* log2 of the bytes per unit */
	bool sealed;    /* PARTIAL: bytes are compared, none is added */
};

/* The LL lines of one packet, and where their data begins in the message. */
struct lines {
	const uint8_t *payload;
	uint64_t data_from, data_stop;
	uint32_t flag;
};

/* Whether units [from, stop) begin and end with a word of the coverage. */
static inline bool whole_words(uint64_t from, uint64_t stop)
{
	return (from | stop) % WORD_UNITS == 0;
}

static inline uint64_t mask_of(uint64_t from, uint64_t stop, uint64_t word)
{
	uint64_t mask = ~0ull;

	if (from > word * WORD_UNITS)
		mask &= ~0ull << (from % WORD_UNITS);
	if (stop < (word + 1) * WORD_UNITS)
		mask &= ~(~0ull << (stop % WORD_UNITS));
	return mask;
}

enum presence {
	NONE,
	SOME,
	ALL,
};

/* How much of the units [from, stop) has arrived; NONE for an empty range. */
static enum presence presence_of(const struct target *t, uint64_t from, uint64_t stop)
{
	uint64_t there = 0, absent = 0;

	if (FC_LIKELY(whole_words(from, stop))) {
		for (uint64_t word = from / WORD_UNITS; word < stop / WORD_UNITS; word++) {
			there |= t->coverage[word];
			absent |= ~t->coverage[word];
		}
		return !there ? NONE : absent ? SOME : ALL;
	}
	for (uint64_t word = from / WORD_UNITS; word * WORD_UNITS < stop; word++) {
		const uint64_t mask = mask_of(from, stop, word);
		there |= t->coverage[word] & mask;
		absent |= ~t->coverage[word] & mask;
	}
	if (!there)
		return NONE;
	return absent ? SOME : ALL;
}

/* Marks units [from, stop) as arrived; none of them was. */
static void cover(const struct target *t, uint64_t from, uint64_t stop)
{
	if (FC_LIKELY(whole_words(from, stop)))
		for (uint64_t word = from / WORD_UNITS; word < stop / WORD_UNITS; word++)
			fc_set_in_shard(t->x, &t->coverage[word], ~0ull);
	else
		for (uint64_t word = from / WORD_UNITS; word * WORD_UNITS < stop; word++)
			fc_set_in_shard(t->x, &t->coverage[word],
					t->coverage[word] | mask_of(from, stop, word));
	uint64_t *sum = &t->generation->covered_units;
	if (from >= t->units) {
		fc_copy_fence(); /* pairs with fc_shard_has_module_buffers() */
		sum = &t->generation->module_buffer_units;
	}
	fc_set_in_shard(t->x, sum, *sum + stop - from);
	t->x->counters->placed_bytes += (stop - from) << t->shift;
}

/* Adds to the sum of conflicts: behind the list, which tells where they are. */
static void count_conflict(const struct target *t, uint64_t *sum, uint64_t bytes)
{
	__atomic_thread_fence(__ATOMIC_RELEASE); /* pairs with fc_shard_conflict_bytes() */
	fc_set(t->x, sum, *sum + bytes);
}

/* Bytes [start, stop) of the gradient are not believed. later: the copy that differs from the one
 * that is there; NULL: it was not kept. What lies beyond `differing_used` is free memory, so an
 * entry that a kill interrupts is written again. */
static void note_differing(const struct target *t, uint64_t start, uint64_t stop,
			   const uint8_t *later)
{
	struct fc_generation *g = t->generation;
	const uint64_t bytes = stop - start, each = (bytes + 7) / 8 * 8, used = g->differing_used;
	struct fc_differing one = { .start_byte = start, .stop_byte = stop };

	if (later && used + sizeof one + 2 * each <= FC_DIFFERING_COPIES)
		one.kept_bytes = bytes;
	one.ring = t->x->ring_number;
	one.flow = t->piece ? t->piece->flow : UINT64_MAX;
	one.psn = t->piece ? t->piece->psn : UINT64_MAX;
	const uint64_t size = sizeof one + (one.kept_bytes ? 2 * each : 0);
	if (used + size <= FC_DIFFERING_BYTES) {
		uint8_t *at = t->differing + used;
		memcpy(at, &one, sizeof one);
		if (one.kept_bytes) {
			memcpy(at + sizeof one, t->data + start, bytes);
			memcpy(at + sizeof one + each, later, bytes);
		}
		count_conflict(t, &g->differing_used, size);
	}
	count_conflict(t, &g->conflict_bytes, bytes);
}

/* Units [from, stop) arrived before with other bytes. */
static void conflict(const struct target *t, uint64_t from, uint64_t stop, const uint8_t *later)
{
	const uint64_t bytes = (stop - from) << t->shift;

	t->x->counters->conflict_bytes += bytes;
	if (from < t->units)
		note_differing(t, from << t->shift, stop << t->shift, later);
	else
		count_conflict(t, &t->generation->module_buffer_conflict_bytes, bytes);
}

enum comparison {
	ABSENT, /* it never came */
	EQUAL,
	OTHER,
};

static enum comparison compare_unit(const struct target *t, uint64_t unit, const uint8_t *bytes)
{
	const uint64_t size = 1ull << t->shift;

	if (!(t->coverage[unit / WORD_UNITS] >> (unit % WORD_UNITS) & 1))
		return ABSENT;
	return memcmp(t->data + (unit << t->shift), bytes, size) ? OTHER : EQUAL;
}

/* Places units [from, stop), of which some are there; those that differ in ranges. */
static void place_units(const struct target *t, uint64_t from, uint64_t stop, const uint8_t *data)
{
	const uint64_t size = 1ull << t->shift;

	while (from < stop) {
		const enum comparison found = compare_unit(t, from, data);
		uint64_t end = from + 1;
		/* The gradient's last unit ends a range. */
		while (found == OTHER && end < stop && end != t->units &&
		       compare_unit(t, end, data + ((end - from) << t->shift)) == OTHER)
			end++;
		if (found == OTHER) {
			conflict(t, from, end, data);
		} else if (found == EQUAL) {
			t->x->counters->duplicate_bytes += size;
		} else if (!t->sealed) {
			memcpy(t->data + (from << t->shift), data, size);
			cover(t, from, from + 1);
		}
		data += (end - from) << t->shift;
		from = end;
	}
}

/* Places `bytes` of final data at `dst`, both multiples of a unit. */
static void place_run(const struct target *t, uint64_t dst, const uint8_t *data, uint64_t bytes)
{
	const uint64_t from = dst >> t->shift, stop = (dst + bytes) >> t->shift;
	const enum presence there = presence_of(t, from, stop);

	if (there == NONE) {
		if (from == stop || t->sealed)
			return;
		/* Read a step later; the commit of the span has the fence. */
		fc_copy_past(t->data + dst, data, bytes, fc_take_ahead(t->x, bytes));
		cover(t, from, stop);
	} else if (there == ALL && !memcmp(t->data + dst, data, bytes)) {
		t->x->counters->duplicate_bytes += bytes;
	} else {
		place_units(t, from, stop, data);
	}
}

/* Places data bytes [from, stop) of the message, from `lines`, at `dst`. `from` is the start of a
 * line, unless a segment begins inside a line. */
static void place_lines(const struct target *t, const struct lines *l, uint64_t from, uint64_t stop,
			uint64_t dst)
{
	while (from < stop) {
		const uint64_t skip = from % 8, line_start = from - skip;
		const uint8_t *line = l->payload + (line_start - l->data_from) * 2;
		uint64_t good;
		if (!skip && !t->sealed &&
		    presence_of(t, dst >> t->shift, (dst + stop - from) >> t->shift) == NONE) {
			/* Read a step later; the commit of the span has the fence. */
			good = fc_ll_unpack_past(t->data + dst, line, stop - from, l->flag,
						 fc_take_ahead(t->x, 2 * (stop - from))) *
			       8;
			good = good < stop - from ? good : stop - from;
			if (good)
				cover(t, dst >> t->shift, (dst + good) >> t->shift);
		} else {
			good = fc_ll_unpack(t->x->scratch, line, stop - line_start, l->flag) * 8;
			good = good < stop - line_start ? good : stop - line_start;
			if (good)
				place_run(t, dst, t->x->scratch + skip, good - skip);
			good = good ? good - skip : 0;
		}
		from += good;
		dst += good;
		if (from < stop) {
			/* A line that was not written: its bytes stay missing. */
			const uint64_t lost = 8 - from % 8;
			t->x->counters->flag_mismatch_lines++;
			from += lost;
			dst += lost;
		}
	}
}

int fc_place_generation(const struct fc_extractor *x, uint64_t step)
{
	for (int i = 0; x->shard && i < FC_GENERATIONS; i++) {
		const struct fc_generation *g = &x->shard->header->generations[i];
		if (g->step == step &&
		    (g->state == FC_GENERATION_OPEN || g->state == FC_GENERATION_COMPLETE ||
		     g->state == FC_GENERATION_PARTIAL))
			return i;
	}
	return -1;
}

static struct target target_of(struct fc_extractor *x, uint32_t generation)
{
	struct fc_generation *g = &x->shard->header->generations[generation];

	return (struct target){
		.x = x,
		.generation = g,
		.data = fc_shard_data(x->shard, generation),
		.differing = fc_shard_differing(x->shard, generation),
		.coverage = fc_shard_coverage(x->shard, generation),
		.units = x->shard->units,
		.shift = (uint32_t)__builtin_ctz(x->shard->header->unit_bytes),
		.sealed = g->state == FC_GENERATION_PARTIAL,
	};
}

/* The first segment that extends beyond data byte `from`. */
static uint32_t find_segment(const struct fc_segment *segments, uint32_t count, uint64_t from)
{
	uint32_t low = 0, high = count;

	while (low < high) {
		const uint32_t mid = low + (high - low) / 2;
		if ((uint64_t)segments[mid].data_byte + segments[mid].data_bytes > from)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

/* Data bytes of the message that its wire bytes [from, stop) may hold. */
static void data_of_wire(const struct fc_send *send, uint64_t *from, uint64_t *stop)
{
	uint64_t unit = 1, data = 1;

	if (send->protocol == FC_PROTOCOL_LL) {
		unit = sizeof(struct fc_ll_line);
		data = 8;
	} else if (fc_is_ll128(send->protocol)) {
		*from += (uint64_t)send->skip_lines * FC_LL128_LINE_BYTES;
		*stop += (uint64_t)send->skip_lines * FC_LL128_LINE_BYTES;
		unit = FC_LL128_GROUP_LINES * FC_LL128_LINE_BYTES;
		data = FC_LL128_GROUP_DATA;
	}
	*from = *from / unit * data;
	*stop = (*stop + unit - 1) / unit * data;
}

void fc_place_conflict(struct fc_extractor *x, const struct fc_send *send, uint64_t step,
		       uint64_t wire_from, uint64_t wire_stop,
		       const struct fc_packet_payload *piece)
{
	const int generation = fc_place_generation(x, step);
	const struct fc_segment *segments = &x->staging->segments[send->first_segment];
	const uint64_t bytes = wire_stop - wire_from;

	if (generation < 0 || !bytes)
		return;
	struct target t = target_of(x, (uint32_t)generation);
	t.piece = piece;
	if (send->segments && segments->dst_byte >= x->shard->header->gradient_bytes) {
		count_conflict(&t, &t.generation->module_buffer_conflict_bytes, bytes);
		return;
	}
	data_of_wire(send, &wire_from, &wire_stop);
	uint32_t ranges = 0;
	for (uint32_t i = find_segment(segments, send->segments, wire_from);
	     i < send->segments && segments[i].data_byte < wire_stop; i++) {
		const struct fc_segment *s = &segments[i];
		const uint64_t end = (uint64_t)s->data_byte + s->data_bytes;
		const uint64_t from = s->data_byte > wire_from ? s->data_byte : wire_from;
		const uint64_t stop = end < wire_stop ? end : wire_stop;
		const uint64_t first = (s->dst_byte + (from - s->data_byte)) >> t.shift;
		const uint64_t last = s->dst_byte + (stop - s->data_byte) + (1ull << t.shift) - 1;
		if (t.sealed && presence_of(&t, first, last >> t.shift) == NONE)
			continue; /* neither copy is in the step */
		if (ranges++ == DOUBTED_RANGES_MAX) {
			count_conflict(&t, &t.generation->conflict_bytes, bytes);
			return;
		}
		note_differing(&t, first << t.shift, last >> t.shift << t.shift, NULL);
	}
}

static void place_segments(const struct target *t, const struct fc_send *send,
			   const struct lines *l)
{
	const struct fc_segment *segments = &t->x->staging->segments[send->first_segment];

	for (uint32_t i = find_segment(segments, send->segments, l->data_from);
	     i < send->segments && segments[i].data_byte < l->data_stop; i++) {
		const struct fc_segment *s = &segments[i];
		const uint64_t end = (uint64_t)s->data_byte + s->data_bytes;
		const uint64_t from = s->data_byte > l->data_from ? s->data_byte : l->data_from;
		const uint64_t stop = end < l->data_stop ? end : l->data_stop;
		const uint64_t dst = s->dst_byte + (from - s->data_byte);
		if (send->protocol == FC_PROTOCOL_LL)
			place_lines(t, l, from, stop, dst);
		else
			place_run(t, dst, l->payload + (from - l->data_from), stop - from);
	}
}

/* Places plain data bytes of the message from `from` on. */
static void place_plain(const struct target *t, const struct fc_send *send, uint64_t from,
			const uint8_t *data, uint64_t bytes)
{
	const struct lines l = { data, from, from + bytes, 0 };

	place_segments(t, send, &l);
}

/* Places lines of one LL128 group, starting with line `first`. A packet may end between them. */
static void place_ll128_lines(const struct target *t, const struct fc_send *send, uint64_t group,
			      unsigned first, unsigned count, const uint8_t *lines, uint32_t flag)
{
	const bool linear = send->protocol == FC_PROTOCOL_LL128_LINEAR;
	const uint64_t base = group * FC_LL128_GROUP_DATA;

	for (unsigned i = 0; i < count; i++, lines += FC_LL128_LINE_BYTES) {
		const struct fc_ll128_line at = fc_ll128_line(first + i, linear);
		if (fc_ll128_flag(lines) != flag) {
			t->x->counters->flag_mismatch_lines++;
			continue;
		}
		place_plain(t, send, base + at.run_at, lines, at.run_bytes);
		if (at.tail_at)
			place_plain(t, send, base + at.tail_at, lines + at.run_bytes,
				    FC_LL128_LINE_DATA - at.run_bytes);
	}
}

/* A path MTU is a multiple of a line, but not always of a group. */
static void place_ll128(const struct target *t, const struct fc_send *send, uint64_t wire_offset,
			const uint8_t *payload, uint32_t payload_bytes, uint32_t flag)
{
	const uint32_t whole_lines = payload_bytes / FC_LL128_LINE_BYTES;
	bool (*const unpack)(uint8_t *, const uint8_t *, uint32_t) =
		send->protocol == FC_PROTOCOL_LL128_LINEAR ? fc_ll128_unpack_linear
							   : fc_ll128_unpack;

	if (wire_offset % FC_LL128_LINE_BYTES)
		return;
	if (!flag && whole_lines) /* unknown: all lines must have that of the first */
		flag = fc_ll128_flag(payload);
	for (uint32_t line = 0; line < whole_lines;) {
		const uint64_t wire_line = wire_offset / FC_LL128_LINE_BYTES + line;
		const unsigned first = wire_line % FC_LL128_GROUP_LINES;
		const uint64_t group = wire_line / FC_LL128_GROUP_LINES;
		const uint8_t *at = payload + (size_t)line * FC_LL128_LINE_BYTES;
		uint32_t count = FC_LL128_GROUP_LINES - first;
		count = count < whole_lines - line ? count : whole_lines - line;
		if (count == FC_LL128_GROUP_LINES && unpack(t->x->scratch, at, flag))
			place_plain(t, send, group * FC_LL128_GROUP_DATA, t->x->scratch,
				    FC_LL128_GROUP_DATA);
		else
			place_ll128_lines(t, send, group, first, count, at, flag);
		line += count;
	}
}

void fc_place_packet(struct fc_extractor *x, const struct fc_send *send, uint64_t step,
		     uint32_t flag, uint64_t wire_offset, const struct fc_packet_payload *piece)
{
	const uint8_t *payload = piece->payload;
	const uint32_t payload_bytes = piece->payload_bytes;
	const int generation = fc_place_generation(x, step);

	if (generation < 0) {
		x->counters->ignored_packets++; /* of a step that was applied or lost */
		return;
	}
	struct target t = target_of(x, (uint32_t)generation);
	t.piece = piece;
	x->counters->placed_packets++;
	if (fc_is_ll128(send->protocol)) {
		place_ll128(&t, send,
			    (uint64_t)send->skip_lines * FC_LL128_LINE_BYTES + wire_offset, payload,
			    payload_bytes, flag);
		return;
	}
	const bool ll = send->protocol == FC_PROTOCOL_LL;
	/* A path MTU is a multiple of a line; the parser's value is checked. */
	if (ll && wire_offset % sizeof(struct fc_ll_line)) {
		x->counters->ignored_packets++;
		return;
	}
	const uint64_t from = ll ? wire_offset / 2 : wire_offset;
	const uint64_t bytes = ll ? payload_bytes / sizeof(struct fc_ll_line) * 8 : payload_bytes;
	const struct lines l = { payload, from, from + bytes, flag };
	place_segments(&t, send, &l);
}
