#include "fc_error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

int fc_fail(int errno_value, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(last_error, sizeof last_error, format, arguments);
	va_end(arguments);
	return -errno_value;
}

const char *fc_last_error(void)
{
	return last_error;
}
