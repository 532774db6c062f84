/* DPDK's environment abstraction layer (EAL), started once per process. Read by the compiler and
 * by cffi. */
#ifndef FC_EAL_H
#define FC_EAL_H

#include <stddef.h>

/* Starts the EAL. Returns 0, or -errno; the reason quotes DPDK. A second call in the same
 * process returns -EALREADY: DPDK cannot start twice. */
int fc_eal_start(int argc, char **argv);

/* DPDK's warnings and errors since the start in one line, separated by "; ". A device whose probe
 * fails is reported only here. */
void fc_eal_complaints(char *out, size_t room);

const char *fc_eal_version(void);
int fc_eal_has_hugepages(void);
/* "PA" or "VA": the kind of addresses that devices use. */
const char *fc_eal_iova_mode(void);

#endif
