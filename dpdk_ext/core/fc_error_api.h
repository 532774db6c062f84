/* The last error of a thread, for Python: flowcheck.errors makes a finding of it. Read by the
 * compiler and by cffi. */
#ifndef FC_ERROR_API_H
#define FC_ERROR_API_H

#include <stdint.h>

enum { FC_ERROR_TEXTS = 3, FC_ERROR_NUMBERS = 3, FC_ERROR_TEXT_BYTES = 512 };

struct fc_error {
	uint32_t number;      /* enum fc_error_number; 0: nothing failed so far */
	uint32_t errno_value; /* as the function returned it, negated */
	uint64_t numbers[FC_ERROR_NUMBERS];
	char texts[FC_ERROR_TEXTS][FC_ERROR_TEXT_BYTES];
};

/* A row of fc_error_table.h: the names of the arguments are separated by spaces. */
struct fc_error_row {
	const char *name, *texts, *numbers;
};

const struct fc_error *fc_last_error(void);
/* NULL: no row has this number. */
const struct fc_error_row *fc_error_row(uint32_t number);

#endif
