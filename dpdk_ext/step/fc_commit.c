#include "fc_commit.h"

#include "fc_common.h"
#include "fc_copy.h"

void fc_commit_store(uint64_t *to, const uint64_t *words, uint64_t count)
{
	fc_copy_fence();
	__atomic_thread_fence(__ATOMIC_RELEASE);
	for (uint64_t i = 0; i < count; i++)
		FC_STORE_RELEASE(&to[i], words[i]); /* pairs with fc_commit_load() */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	fc_copy_fence();
}

void fc_commit_load(const uint64_t *from, uint64_t *words, uint64_t count)
{
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	for (uint64_t i = 0; i < count; i++)
		words[i] = FC_LOAD_ACQUIRE(&from[i]);
}
