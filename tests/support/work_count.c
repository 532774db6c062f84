/* How much the core does: the compiler calls this at every edge between its basic blocks. A
 * count that no clock, load or cache changes. */
#include <stdint.h>

static uint64_t steps;

__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void)
{
	steps++;
}

__attribute__((no_sanitize_coverage)) uint64_t fc_steps_done(void)
{
	return steps;
}
