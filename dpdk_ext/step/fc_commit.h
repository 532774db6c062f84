/* Words by which the replica's file says what it holds, written and read in order: Python has no
 * fences, and what they speak of was written past the caches. Read by the compiler and by cffi. */
#ifndef FC_COMMIT_H
#define FC_COMMIT_H

#include <stdint.h>

/* Each word in one store, ascending. All that was written before is seen before the first of them,
 * and nothing that is written later is seen before the last. */
void fc_commit_store(uint64_t *to, const uint64_t *words, uint64_t count);
/* Each word in one load, ascending, behind all that was read before. */
void fc_commit_load(const uint64_t *from, uint64_t *words, uint64_t count);

#endif
