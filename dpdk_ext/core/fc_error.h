/* A sentence behind a negative errno. Set-up functions return -errno and leave
 * the sentence here, per thread; flowcheck.errors.check() turns both into one
 * exception. Packets never come here: they get a verdict. */
#ifndef FC_ERROR_H
#define FC_ERROR_H

/* Stores the formatted sentence and returns -errno_value. */
int fc_fail(int errno_value, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *fc_last_error(void);

#endif
