/* A sentence behind a negative errno, per thread; fcl_error() in fcl_net.h reads it. */
#pragma once

/* Stores the formatted sentence and returns -errno_value. Arguments may point into the old one. */
int fcl_fail(int errno_value, const char *format, ...) __attribute__((format(printf, 2, 3)));
