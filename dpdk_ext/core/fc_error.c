#include "fc_error.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>

static _Thread_local struct fc_error last_error;

#define ROW(name, texts, numbers) { #name, texts, numbers },
static const struct fc_error_row rows[] = { { "NONE", "", "" }, FC_ERRORS(ROW) };
#undef ROW

int fc_fail_with(int errno_value, enum fc_error_number number,
		 const struct fc_error_arguments *arguments)
{
	/* A library that forgot to set its errno: 0 would be taken for success. */
	const int code = errno_value ? errno_value : EIO;

	last_error.number = (uint32_t)number;
	last_error.errno_value = (uint32_t)code;
	for (int i = 0; i < FC_ERROR_NUMBERS; i++)
		last_error.numbers[i] = arguments->numbers[i];
	for (int i = 0; i < FC_ERROR_TEXTS; i++)
		snprintf(last_error.texts[i], sizeof last_error.texts[i], "%s",
			 arguments->texts[i] ? arguments->texts[i] : "");
	return -code;
}

const struct fc_error *fc_last_error(void)
{
	return &last_error;
}

const struct fc_error_row *fc_error_row(uint32_t number)
{
	return number < sizeof rows / sizeof *rows ? &rows[number] : NULL;
}
