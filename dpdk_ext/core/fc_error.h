/* Error messages. Set-up functions return -errno and store a message here, per thread;
 * flowcheck.errors.check() raises both as one exception. Errors in packets do not use this:
 * packets get a verdict. */
#ifndef FC_ERROR_H
#define FC_ERROR_H

/* Stores the formatted message and returns -errno_value. */
int fc_fail(int errno_value, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *fc_last_error(void);

#endif
