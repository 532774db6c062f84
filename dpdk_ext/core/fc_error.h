/* Why a set-up function failed. It returns -errno and stores a row of the table with its arguments,
 * per thread; flowcheck.errors makes one exception of both. Errors in packets do not use this:
 * packets get a verdict. */
#ifndef FC_ERROR_H
#define FC_ERROR_H

#include "fc_error_api.h"
#include "fc_error_table.h"

/* In the order of the row; texts that are longer are cut. */
struct fc_error_arguments {
	const char *texts[FC_ERROR_TEXTS];
	uint64_t numbers[FC_ERROR_NUMBERS];
};

/* Stores row `number` and its arguments; returns -errno_value. */
int fc_fail_with(int errno_value, enum fc_error_number number,
		 const struct fc_error_arguments *arguments);

/* fc_fail(EINVAL, PATH_TOO_LONG, .texts = { path }, .numbers = { PATH_MAX }) */
#define fc_fail(errno_value, name, ...)                                                            \
	fc_fail_with(errno_value, FC_ERROR_##name,                                                 \
		     &(const struct fc_error_arguments){ __VA_ARGS__ })

#endif
