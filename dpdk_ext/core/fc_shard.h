/* The flat gradient in named shared memory: two generations, each with one bit
 * per element that says whether it is there. Read by the compiler and by cffi.
 *
 *   0         struct fc_shard_header
 *   4 KiB     frontiers: 64-bit words
 *   68 KiB    coverage of generation 0, then 1 (64-byte multiples)
 *   2 MiB ..  data of generation 0, then 1 (2 MiB multiples)
 *
 *   who        writes
 *   extractor  generations, frontiers, coverage, data
 *   updater    applied_step, doubted
 *
 * A generation's `state` is its commit word. OPEN: bytes arrive. COMPLETE: every
 * unit is there and stays until the step is applied. LOST: it never will be. A copy that
 * differs may come while it is COMPLETE: the updater looks once more before it commits the
 * step, and doubts the generation where one came. What comes behind the commit is counted
 * until the generation is opened anew.
 * Behind the gradient lies what else an iteration sends, `held_bytes`: no step waits
 * for it, nor is any the worse where it lacks something.
 *
 * The frontier of a planned flow is the number of the first message that no mirror
 * point told yet; what comes after it waits. It is here since all rings share it. */
#ifndef FC_SHARD_H
#define FC_SHARD_H

#include "fc_shm.h"

enum {
	FC_SHARD_VERSION = 4,
	FC_GENERATIONS = 2,
	FC_FRONTIERS = 8192, /* as many as there can be flows */
};

enum fc_generation_state {
	FC_GENERATION_EMPTY,
	FC_GENERATION_OPEN,
	FC_GENERATION_COMPLETE,
	FC_GENERATION_LOST,
};

struct fc_generation {
	uint64_t state; /* enum fc_generation_state */
	uint64_t step;
	uint64_t covered_units;
	uint64_t conflict_bytes; /* of which two copies differ: it is not taken */
	uint64_t begun;          /* how often it was opened: another number, other bytes */
	uint64_t held_units, held_conflict_bytes; /* likewise, of what lies behind the gradient */
	uint64_t spare[9];
};

struct fc_shard_header {
	uint8_t magic[8]; /* "FCSHARD\0" */
	uint32_t layout_version;
	uint32_t unit_bytes; /* of one element: 2, 4 or 8 */
	uint64_t gradient_bytes;
	uint64_t file_bytes;
	uint64_t coverage_offset, coverage_bytes; /* of generation 0; bytes of each */
	uint64_t data_offset, data_bytes;         /* likewise */
	/* Of the extractor: what the coverage told before this last grew can be read. Until then
	 * the bytes may still be on their way past the caches. */
	uint64_t settled;
	uint64_t held_bytes; /* behind each gradient */
	/* Of the extractor: grows behind every time that coverage or counts of an open span were taken
	 * back, after a kill: who saw them before has seen what is no more. */
	uint64_t undone;
	uint8_t pad_identity[40];
	struct fc_generation generations[FC_GENERATIONS];
	uint64_t applied_step; /* the updater's word; 0: none yet */
	/* The updater's: `begun` of a generation that was COMPLETE and is not taken, as two copies
	 * differ. */
	uint64_t doubted[FC_GENERATIONS];
	uint8_t pad_applied[104];
};

struct fc_shard {
	struct fc_map map;
	struct fc_shard_header *header;
	uint64_t units; /* of the gradient */
};

int fc_shard_create(const char *path, uint64_t gradient_bytes, uint64_t held_bytes,
		    uint32_t unit_bytes, struct fc_shard *out);
/* Opens and checks magic, layout version and every size. */
int fc_shard_open(const char *path, struct fc_shard *out);
void fc_shard_close(struct fc_shard *shard);

uint8_t *fc_shard_data(const struct fc_shard *shard, uint32_t generation);
uint64_t *fc_shard_coverage(const struct fc_shard *shard, uint32_t generation);
/* `which` below FC_FRONTIERS. */
uint64_t *fc_shard_frontier(const struct fc_shard *shard, uint64_t which);
uint64_t fc_shard_state(const struct fc_shard *shard, uint32_t generation);
uint64_t fc_shard_applied(const struct fc_shard *shard);
/* Of a look at coverage the one that was read behind it counts: what was seen there can be read once
 * this is greater. */
uint64_t fc_shard_settled(const struct fc_shard *shard);
/* Read before and behind, and the same: nothing that was seen between was taken back. */
uint64_t fc_shard_undone(const struct fc_shard *shard);
uint64_t fc_shard_step(const struct fc_shard *shard, uint32_t generation);
/* Read before and behind, and the same: what was read between is of one opening. */
uint64_t fc_shard_begun(const struct fc_shard *shard, uint32_t generation);
/* All that lies behind the gradient is there, no two copies differ, and it can be read. */
int fc_shard_held(const struct fc_shard *shard, uint32_t generation);

/* Extractor: forgets what the generation held and opens it for `step`. */
void fc_shard_begin(struct fc_shard *shard, uint32_t generation, uint64_t step);
/* Extractor: its stores so far are fenced. */
void fc_shard_settle(struct fc_shard *shard);
/* Extractor: changes of an open span were taken back. */
void fc_shard_undo(struct fc_shard *shard);
/* Extractor: COMPLETE if every unit is there. Returns 1 if it is complete now. */
int fc_shard_finish(struct fc_shard *shard, uint32_t generation);
/* Extractor: the step will never be whole. */
void fc_shard_lose(struct fc_shard *shard, uint32_t generation);
/* Extractor: forgets every generation and frontier; what follows is of another job. */
void fc_shard_clear(struct fc_shard *shard);
/* Updater: `step` and all before it are in the replica. */
void fc_shard_apply(struct fc_shard *shard, uint64_t step);

/* Updater: the step of this generation is not taken, as two copies differ. */
void fc_shard_doubt(struct fc_shard *shard, uint32_t generation);
int fc_shard_doubted(const struct fc_shard *shard, uint32_t generation);

/* The next run of bytes from `from` on that are missing, as [*start, *stop);
 * 0 if there is none. */
int fc_shard_next_missing(const struct fc_shard *shard, uint32_t generation, uint64_t from,
			  uint64_t *start, uint64_t *stop);

#endif
