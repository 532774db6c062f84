#define _GNU_SOURCE
#include "fc_eal.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_version.h>

#include "fc_error.h"

/* DPDK reports causes only on its log, so the beginning of the log is stored: the first message is
 * the cause, later ones repeat it. */
static char kept[2048];
static size_t kept_bytes;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t keep(void *cookie, const char *text, size_t bytes)
{
	(void)cookie;
	pthread_mutex_lock(&kept_lock);
	const size_t room = sizeof kept - 1 - kept_bytes;
	const size_t taken = bytes < room ? bytes : room;

	memcpy(kept + kept_bytes, text, taken);
	kept_bytes += taken;
	pthread_mutex_unlock(&kept_lock);
	return (ssize_t)bytes;
}

void fc_eal_complaints(char *out, size_t room)
{
	size_t used = 0;

	if (!room)
		return;
	pthread_mutex_lock(&kept_lock);
	for (size_t i = 0; i < kept_bytes && used + 3 < room; i++) {
		if (kept[i] != '\n') {
			out[used++] = kept[i];
		} else if (i + 1 < kept_bytes && used && out[used - 1] != ' ') {
			out[used++] = ';';
			out[used++] = ' ';
		}
	}
	pthread_mutex_unlock(&kept_lock);
	out[used] = 0;
}

int fc_eal_start(int argc, char **argv)
{
	static bool tried;
	const cookie_io_functions_t functions = { .write = keep };

	if (tried)
		return fc_fail(EALREADY, DPDK_STARTED_TWICE);
	tried = true;
	FILE *log = fopencookie(NULL, "w", functions);
	if (!log || rte_openlog_stream(log) < 0)
		return fc_fail(ENOMEM, DPDK_LOG_WITHOUT_MEMORY);
	setvbuf(log, NULL, _IOLBF, 0);
	rte_log_set_global_level(RTE_LOG_WARNING);
	/* On failure rte_errno may be 0; only the return value is reliable. */
	if (rte_eal_init(argc, argv) < 0) {
		char why[400];

		fflush(log);
		fc_eal_complaints(why, sizeof why);
		return fc_fail(rte_errno ? rte_errno : EINVAL, DPDK_NOT_STARTED,
			       .texts = { why[0] ? why : rte_strerror(rte_errno) });
	}
	return 0;
}

const char *fc_eal_version(void)
{
	return rte_version();
}

int fc_eal_has_hugepages(void)
{
	return rte_eal_has_hugepages();
}

const char *fc_eal_iova_mode(void)
{
	return rte_eal_iova_mode() == RTE_IOVA_PA ? "PA" : "VA";
}
