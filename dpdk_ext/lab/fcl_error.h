/* One sentence per thread behind a negative errno, for whoever has to tell the user. */
#pragma once

/* Stores the sentence that fcl_error() returns and returns -errno_value. */
int fcl_fail(int errno_value, const char *format, ...) __attribute__((format(printf, 2, 3)));
