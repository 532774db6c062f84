#include "fc_shard.h"

#include <errno.h>

#include "fc_common.h"
#include "fc_copy.h"
#include "fc_error.h"

static const uint8_t shard_magic[8] = "FCSHARD";

_Static_assert(sizeof(struct fc_shard_header) <= 4096, "the header fits its page");
_Static_assert(offsetof(struct fc_shard_header, generations) % 128 == 0, "lines of their own");
_Static_assert(offsetof(struct fc_shard_header, applied_step) % 128 == 0, "lines of its own");

#define FRONTIERS_AT 4096
#define COVERAGE_AT (FRONTIERS_AT + FC_FRONTIERS * sizeof(uint64_t))

/* Larger than any model; all products stay below 2^64. */
#define GRADIENT_BYTES_MAX (1ull << 46)

struct layout {
	uint64_t coverage_bytes, differing, data, data_bytes, end;
};

static uint64_t round_up(uint64_t bytes, uint64_t multiple)
{
	return (bytes + multiple - 1) / multiple * multiple;
}

/* bytes: of the gradient and of what follows it */
static struct layout layout_for(uint64_t bytes, uint32_t unit_bytes)
{
	struct layout at;

	at.coverage_bytes = round_up(bytes / unit_bytes, 512) / 8;
	at.differing = COVERAGE_AT + FC_GENERATIONS * at.coverage_bytes;
	at.data = round_up(at.differing + FC_GENERATIONS * FC_DIFFERING_BYTES, FC_HUGE_PAGE_BYTES);
	at.data_bytes = round_up(bytes, FC_HUGE_PAGE_BYTES);
	at.end = at.data + FC_GENERATIONS * at.data_bytes;
	return at;
}

static int check_geometry(uint64_t gradient_bytes, uint64_t module_buffer_bytes,
			  uint32_t unit_bytes)
{
	if (unit_bytes != 2 && unit_bytes != 4 && unit_bytes != 8)
		return fc_fail(EINVAL, SHARD_ELEMENT_REFUSED, .numbers = { unit_bytes });
	if (gradient_bytes == 0 || gradient_bytes % unit_bytes ||
	    gradient_bytes > GRADIENT_BYTES_MAX)
		return fc_fail(EINVAL, SHARD_GRADIENT_REFUSED,
			       .numbers = { gradient_bytes, unit_bytes });
	if (module_buffer_bytes % unit_bytes || module_buffer_bytes > GRADIENT_BYTES_MAX)
		return fc_fail(EINVAL, SHARD_EXTRA_REFUSED,
			       .numbers = { module_buffer_bytes, unit_bytes });
	return 0;
}

static void attach(struct fc_shard *shard)
{
	shard->header = (struct fc_shard_header *)shard->map.base;
	shard->units = shard->header->gradient_bytes / shard->header->unit_bytes;
}

int fc_shard_create(const char *path, uint64_t gradient_bytes, uint64_t module_buffer_bytes,
		    uint32_t unit_bytes, struct fc_shard *out)
{
	memset(out, 0, sizeof *out);
	int code = check_geometry(gradient_bytes, module_buffer_bytes, unit_bytes);
	if (code < 0)
		return code;
	const struct layout at = layout_for(gradient_bytes + module_buffer_bytes, unit_bytes);
	code = fc_map_create(path, at.end, &out->map);
	if (code < 0)
		return code;
	struct fc_shard_header *header = (struct fc_shard_header *)out->map.base;
	header->layout_version = FC_SHARD_VERSION;
	header->unit_bytes = unit_bytes;
	header->gradient_bytes = gradient_bytes;
	header->module_buffer_bytes = module_buffer_bytes;
	header->file_bytes = out->map.bytes;
	header->coverage_offset = COVERAGE_AT;
	header->coverage_bytes = at.coverage_bytes;
	header->differing_offset = at.differing;
	header->data_offset = at.data;
	header->data_bytes = at.data_bytes;
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(header->magic, shard_magic, sizeof shard_magic);
	attach(out);
	return 0;
}

static int check_header(const struct fc_shard_header *header, uint64_t mapped, const char *path)
{
	if (mapped < 4096 || memcmp(header->magic, shard_magic, sizeof shard_magic))
		return fc_fail(EINVAL, NOT_A_SHARD, .texts = { path });
	if (header->layout_version != FC_SHARD_VERSION)
		return fc_fail(EPROTO, OTHER_LAYOUT_VERSION, .texts = { path },
			       .numbers = { header->layout_version, FC_SHARD_VERSION });
	const uint64_t buffers = header->module_buffer_bytes;
	const int code = check_geometry(header->gradient_bytes, buffers, header->unit_bytes);
	if (code < 0)
		return code;
	const struct layout at = layout_for(header->gradient_bytes + buffers, header->unit_bytes);
	if (header->file_bytes != mapped || at.end > mapped ||
	    header->coverage_offset != COVERAGE_AT || header->coverage_bytes != at.coverage_bytes ||
	    header->differing_offset != at.differing || header->data_offset != at.data ||
	    header->data_bytes != at.data_bytes)
		return fc_fail(EINVAL, SIZES_CONTRADICT, .texts = { path }, .numbers = { mapped });
	return 0;
}

int fc_shard_open(const char *path, struct fc_shard *out)
{
	memset(out, 0, sizeof *out);
	int code = fc_map_open(path, 1, &out->map);
	if (code < 0)
		return code;
	code = check_header((const struct fc_shard_header *)out->map.base, out->map.bytes, path);
	if (code < 0) {
		fc_map_close(&out->map);
		return code;
	}
	attach(out);
	return 0;
}

void fc_shard_close(struct fc_shard *shard)
{
	fc_map_close(&shard->map);
	memset(shard, 0, sizeof *shard);
}

uint8_t *fc_shard_data(const struct fc_shard *shard, uint32_t generation)
{
	const struct fc_shard_header *header = shard->header;

	return shard->map.base + header->data_offset + generation * header->data_bytes;
}

uint64_t *fc_shard_coverage(const struct fc_shard *shard, uint32_t generation)
{
	const struct fc_shard_header *header = shard->header;

	return (uint64_t *)(shard->map.base + header->coverage_offset +
			    generation * header->coverage_bytes);
}

uint8_t *fc_shard_differing(const struct fc_shard *shard, uint32_t generation)
{
	return shard->map.base + shard->header->differing_offset +
	       (uint64_t)generation * FC_DIFFERING_BYTES;
}

uint64_t fc_shard_differing_used(const struct fc_shard *shard, uint32_t generation)
{
	return FC_LOAD_ACQUIRE(&shard->header->generations[generation].differing_used);
}

uint64_t fc_shard_conflict_bytes(const struct fc_shard *shard, uint32_t generation)
{
	return FC_LOAD_ACQUIRE(&shard->header->generations[generation].conflict_bytes);
}

uint64_t *fc_shard_frontier(const struct fc_shard *shard, uint64_t which)
{
	return (uint64_t *)(shard->map.base + FRONTIERS_AT) + which;
}

uint64_t fc_shard_state(const struct fc_shard *shard, uint32_t generation)
{
	return FC_LOAD_ACQUIRE(&shard->header->generations[generation].state);
}

uint64_t fc_shard_applied(const struct fc_shard *shard)
{
	return FC_LOAD_ACQUIRE(&shard->header->applied_step);
}

uint64_t fc_shard_settled(const struct fc_shard *shard)
{
	return FC_LOAD_ACQUIRE(&shard->header->settled); /* pairs with fc_shard_settle() */
}

uint64_t fc_shard_undone(const struct fc_shard *shard)
{
	return FC_LOAD_ACQUIRE(&shard->header->undone); /* pairs with fc_shard_undo() */
}

uint64_t fc_shard_step(const struct fc_shard *shard, uint32_t generation)
{
	return FC_LOAD_ACQUIRE(&shard->header->generations[generation].step);
}

uint64_t fc_shard_begun(const struct fc_shard *shard, uint32_t generation)
{
	__atomic_thread_fence(__ATOMIC_ACQUIRE); /* orders this after the reads of the generation */
	return FC_LOAD_ACQUIRE(&shard->header->generations[generation].begun);
}

int fc_shard_has_module_buffers(const struct fc_shard *shard, uint32_t generation)
{
	const struct fc_shard_header *header = shard->header;
	const struct fc_generation *g = &header->generations[generation];

	/* pairs with cover() in fc_shard_write.c */
	return FC_LOAD_ACQUIRE(&g->module_buffer_units) ==
		       header->module_buffer_bytes / header->unit_bytes &&
	       !FC_LOAD_ACQUIRE(&g->module_buffer_conflict_bytes);
}

void fc_shard_settle(struct fc_shard *shard)
{
	FC_STORE_RELEASE(&shard->header->settled, shard->header->settled + 1);
	/* Coverage that is set from here on is not visible before the new number: a reader that
	 * saw it does not read a smaller one afterwards (stages/replica_update/early_step.py). */
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

void fc_shard_undo(struct fc_shard *shard)
{
	FC_STORE_RELEASE(&shard->header->undone, shard->header->undone + 1);
}

void fc_shard_begin(struct fc_shard *shard, uint32_t generation, uint64_t step)
{
	struct fc_generation *g = &shard->header->generations[generation];

	FC_STORE_RELEASE(&g->state, FC_GENERATION_EMPTY);
	/* A reader that sees coverage of the new opening does not read an older state afterwards.
	 */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memset(fc_shard_coverage(shard, generation), 0, shard->header->coverage_bytes);
	g->covered_units = 0;
	g->conflict_bytes = 0;
	g->differing_used = 0;
	g->module_buffer_units = 0;
	g->module_buffer_conflict_bytes = 0;
	FC_STORE_RELEASE(&g->begun, g->begun + 1); /* pairs with fc_shard_begun() */
	/* A reader that sees this step does not read an older state afterwards. */
	FC_STORE_RELEASE(&g->step, step);
	FC_STORE_RELEASE(&g->state, FC_GENERATION_OPEN); /* pairs with fc_shard_state() */
	fc_copy_fence(); /* no byte, even past the caches, is visible before `begun` */
}

int fc_shard_finish(struct fc_shard *shard, uint32_t generation)
{
	struct fc_generation *g = &shard->header->generations[generation];

	if (g->state == FC_GENERATION_OPEN && g->covered_units == shard->units &&
	    !g->conflict_bytes)
		FC_STORE_RELEASE(&g->state, FC_GENERATION_COMPLETE);
	return g->state == FC_GENERATION_COMPLETE;
}

void fc_shard_lose(struct fc_shard *shard, uint32_t generation)
{
	FC_STORE_RELEASE(&shard->header->generations[generation].state, FC_GENERATION_LOST);
}

void fc_shard_make_partial(struct fc_shard *shard, uint32_t generation)
{
	FC_STORE_RELEASE(&shard->header->generations[generation].state, FC_GENERATION_PARTIAL);
}

void fc_shard_clear(struct fc_shard *shard)
{
	for (uint32_t i = 0; i < FC_GENERATIONS; i++)
		FC_STORE_RELEASE(&shard->header->generations[i].state, FC_GENERATION_EMPTY);
	memset(fc_shard_frontier(shard, 0), 0, FC_FRONTIERS * sizeof(uint64_t));
}

void fc_shard_apply(struct fc_shard *shard, uint64_t step)
{
	FC_STORE_RELEASE(&shard->header->applied_step, step);
}

void fc_shard_judge(struct fc_shard *shard, uint32_t generation, uint64_t conflict_bytes)
{
	FC_STORE_RELEASE(&shard->header->judged[generation].conflict_bytes, 0);
	FC_STORE_RELEASE(&shard->header->judged[generation].begun,
			 fc_shard_begun(shard, generation));
	FC_STORE_RELEASE(&shard->header->judged[generation].conflict_bytes, conflict_bytes);
}

uint64_t fc_shard_judged(const struct fc_shard *shard, uint32_t generation)
{
	/* The opening first: bytes that are read behind it are no earlier one's. */
	const uint64_t begun = FC_LOAD_ACQUIRE(&shard->header->judged[generation].begun);
	const uint64_t bytes = FC_LOAD_ACQUIRE(&shard->header->judged[generation].conflict_bytes);

	return begun == FC_LOAD_ACQUIRE(&shard->header->generations[generation].begun) ? bytes : 0;
}

void fc_shard_doubt(struct fc_shard *shard, uint32_t generation)
{
	FC_STORE_RELEASE(&shard->header->doubted[generation], fc_shard_begun(shard, generation));
}

int fc_shard_doubted(const struct fc_shard *shard, uint32_t generation)
{
	return FC_LOAD_ACQUIRE(&shard->header->doubted[generation]) ==
	       FC_LOAD_ACQUIRE(&shard->header->generations[generation].begun);
}

/* First unit at or after `from` whose bit is `value`; `units`: none. */
static uint64_t find_unit(const uint64_t *coverage, uint64_t from, uint64_t units, bool value)
{
	while (from < units) {
		/* Acquire: what is read after coverage (`settled`) is not older than it. */
		const uint64_t there = FC_LOAD_ACQUIRE(&coverage[from / 64]);
		const uint64_t word = value ? there : ~there;
		const uint64_t rest = word >> (from % 64);
		if (rest) {
			const uint64_t found = from + (uint64_t)__builtin_ctzll(rest);
			return found < units ? found : units;
		}
		from = (from / 64 + 1) * 64;
	}
	return units;
}

int fc_shard_next_missing(const struct fc_shard *shard, uint32_t generation, uint64_t from,
			  uint64_t *start, uint64_t *stop)
{
	const uint64_t *coverage = fc_shard_coverage(shard, generation);
	const uint64_t unit = shard->header->unit_bytes;
	const uint64_t first = find_unit(coverage, (from + unit - 1) / unit, shard->units, false);

	if (first == shard->units)
		return 0;
	*start = first * unit;
	*stop = find_unit(coverage, first, shard->units, true) * unit;
	return 1;
}
