/* The flat gradient in named shared memory: two generations, each with one bit per element that
 * says whether it has arrived. Read by the compiler and by cffi.
 *
 * 0         struct fc_shard_header
 * 4 KiB     frontiers: 64-bit words
 * 68 KiB    coverage of generation 0, then 1 (64-byte multiples)
 *           differing copies of generation 0, then 1
 * 2 MiB ..  data of generation 0, then 1 (2 MiB multiples)
 *
 * process    writes
 * extractor  generations, frontiers, coverage, differing copies, data
 * updater    applied_step, doubted, judged
 *
 * A generation's `state` is its commit word. OPEN: bytes arrive. COMPLETE: every unit has arrived
 * and stays until the step is applied. LOST: it will never be complete, and is not applied.
 * PARTIAL: nor will it, and what came is applied; copies of that are compared, and nothing is added.
 * A copy with other bytes may arrive while a generation is COMPLETE or PARTIAL: the updater checks
 * again before it commits the step. Later conflicts are counted until the generation is opened
 * again.
 *
 * Where copies differ, the first one stays in the data, and a list tells the place and both copies.
 * If the list has no room, or the place is not known, its ranges are fewer than `conflict_bytes`:
 * then nothing of the step can be believed, and the updater marks the generation as doubted. The
 * data of an iteration that is no gradient follows the gradient
 * (`module_buffer_bytes`): no step waits for it or depends on it.
 *
 * The frontier of a planned flow is the number of the first message that no mirror point has
 * reported yet; messages after it wait. It is in this file because all rings share it. */
#ifndef FC_SHARD_H
#define FC_SHARD_H

#include "fc_shm.h"

enum {
	FC_SHARD_VERSION = 6,
	FC_GENERATIONS = 2,
	FC_FRONTIERS = 16384,          /* as many as there can be flows */
	FC_DIFFERING_BYTES = 1 << 19,  /* the list of differing copies, of one generation */
	FC_DIFFERING_COPIES = 1 << 18, /* of it: beyond that, only places are kept */
};

enum fc_generation_state {
	FC_GENERATION_EMPTY,
	FC_GENERATION_OPEN,
	FC_GENERATION_COMPLETE,
	FC_GENERATION_LOST,
	FC_GENERATION_PARTIAL,
};

struct fc_generation {
	uint64_t state; /* enum fc_generation_state */
	uint64_t step;
	uint64_t covered_units;
	uint64_t conflict_bytes; /* bytes in which copies differ */
	uint64_t begun;          /* number of openings; each has another value */
	uint64_t module_buffer_units,
		module_buffer_conflict_bytes; /* the same for the data after the gradient */
	uint64_t differing_used;              /* bytes of the list of differing copies */
	uint64_t spare[8];
};

enum { FC_RING_UNKNOWN = 255 };

/* A range of the gradient of which a later copy has other bytes than the first one. It is followed
 * by `kept_bytes` of the first copy and as many of the later one, each a multiple of 8 long. */
struct fc_differing {
	uint64_t start_byte, stop_byte;
	uint64_t kept_bytes; /* the first ones of the range; 0: the later copy was not kept */
	uint64_t ring;       /* that the later copy came from */
	uint64_t flow, psn;  /* of the later copy, as that ring's parser counts them */
};

struct fc_shard_header {
	uint8_t magic[8]; /* "FCSHARD\0" */
	uint32_t layout_version;
	uint32_t unit_bytes; /* bytes of one element: 2, 4 or 8 */
	uint64_t gradient_bytes;
	uint64_t file_bytes;
	uint64_t coverage_offset, coverage_bytes; /* of generation 0; of each */
	uint64_t differing_offset;                /* of generation 0; each has FC_DIFFERING_BYTES */
	uint64_t data_offset, data_bytes;         /* the same */
	/* Written by the extractor: coverage that was set before the last increment can be read.
	 * Other bytes may still be on their way past the caches. */
	uint64_t settled;
	uint64_t module_buffer_bytes; /* bytes after each gradient */
	/* Written by the extractor: incremented after each rollback of coverage or counts, which
	 * follows a kill. A reader that saw them before must discard them. */
	uint64_t undone;
	uint8_t pad_identity[32];
	struct fc_generation generations[FC_GENERATIONS];
	uint64_t applied_step; /* written by the updater; 0: none yet */
	/* Written by the updater: `begun` of a COMPLETE or PARTIAL generation of which it applied
	 * nothing, since copies differ. */
	uint64_t doubted[FC_GENERATIONS];
	/* Written by the updater: what it knew of the conflicts of an applied generation when it
	 * decided what they cost, and the opening's `begun`. */
	struct {
		uint64_t begun, conflict_bytes;
	} judged[FC_GENERATIONS];
	uint8_t pad_applied[72];
};

struct fc_shard {
	struct fc_map map;
	struct fc_shard_header *header;
	uint64_t units; /* of the gradient */
};

int fc_shard_create(const char *path, uint64_t gradient_bytes, uint64_t module_buffer_bytes,
		    uint32_t unit_bytes, struct fc_shard *out);
/* Opens the file and checks magic, layout version and all sizes. */
int fc_shard_open(const char *path, struct fc_shard *out);
void fc_shard_close(struct fc_shard *shard);

uint8_t *fc_shard_data(const struct fc_shard *shard, uint32_t generation);
uint64_t *fc_shard_coverage(const struct fc_shard *shard, uint32_t generation);
/* The list of differing copies: FC_DIFFERING_BYTES. */
uint8_t *fc_shard_differing(const struct fc_shard *shard, uint32_t generation);
/* Bytes of it in use; conflict_bytes that were read before are in them. */
uint64_t fc_shard_differing_used(const struct fc_shard *shard, uint32_t generation);
uint64_t fc_shard_conflict_bytes(const struct fc_shard *shard, uint32_t generation);
/* `which` below FC_FRONTIERS. */
uint64_t *fc_shard_frontier(const struct fc_shard *shard, uint64_t which);
uint64_t fc_shard_state(const struct fc_shard *shard, uint32_t generation);
uint64_t fc_shard_applied(const struct fc_shard *shard);
/* Read it after coverage: what was seen there can be read once this value has grown. */
uint64_t fc_shard_settled(const struct fc_shard *shard);
/* Read before and after: if equal, nothing that was read between was rolled back. */
uint64_t fc_shard_undone(const struct fc_shard *shard);
uint64_t fc_shard_step(const struct fc_shard *shard, uint32_t generation);
/* Read before and after: if equal, everything read between is of one opening. */
uint64_t fc_shard_begun(const struct fc_shard *shard, uint32_t generation);
/* 1: all data after the gradient has arrived, without conflict, and can be read. */
int fc_shard_has_module_buffers(const struct fc_shard *shard, uint32_t generation);

/* Extractor: empties the generation and opens it for `step`. */
void fc_shard_begin(struct fc_shard *shard, uint32_t generation, uint64_t step);
/* Extractor: all its stores so far are fenced. */
void fc_shard_settle(struct fc_shard *shard);
/* Extractor: changes of an open span were rolled back. */
void fc_shard_undo(struct fc_shard *shard);
/* Extractor: sets COMPLETE if every unit has arrived. Returns 1 if it is complete now. */
int fc_shard_finish(struct fc_shard *shard, uint32_t generation);
/* Extractor: the step will never be complete. */
void fc_shard_lose(struct fc_shard *shard, uint32_t generation);
/* Extractor: nothing more of the step arrives, and what came is to be applied. */
void fc_shard_make_partial(struct fc_shard *shard, uint32_t generation);
/* Extractor: empties all generations and frontiers; what follows belongs to another job. */
void fc_shard_clear(struct fc_shard *shard);
/* Updater: `step` and all steps before it are in the replica. */
void fc_shard_apply(struct fc_shard *shard, uint64_t step);

/* Updater: it decided what `conflict_bytes` of this applied generation cost. */
void fc_shard_judge(struct fc_shard *shard, uint32_t generation, uint64_t conflict_bytes);
/* `conflict_bytes` of this opening that the updater decided on. */
uint64_t fc_shard_judged(const struct fc_shard *shard, uint32_t generation);

/* Updater: nothing of this generation is applied, since copies differ. */
void fc_shard_doubt(struct fc_shard *shard, uint32_t generation);
int fc_shard_doubted(const struct fc_shard *shard, uint32_t generation);

/* The next range of missing bytes from `from` on, as [*start, *stop); returns 0 if there is none.
 */
int fc_shard_next_missing(const struct fc_shard *shard, uint32_t generation, uint64_t from,
			  uint64_t *start, uint64_t *stop);

#endif
