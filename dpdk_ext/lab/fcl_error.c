#include "fcl_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "fcl_net.h"

static _Thread_local char sentence[256] = "no error";

const char *fcl_error(void)
{
	return sentence;
}

int fcl_fail(int errno_value, const char *format, ...)
{
	char made[sizeof(sentence)]; /* arguments may point into the sentence before */
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(made, sizeof(made), format, arguments);
	va_end(arguments);
	memcpy(sentence, made, sizeof(sentence));
	return -errno_value;
}
