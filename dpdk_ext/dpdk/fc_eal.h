/* DPDK's environment: started once per process. Read by the compiler and by cffi. */
#ifndef FC_EAL_H
#define FC_EAL_H

#include <stddef.h>

/* 0, or -errno with a sentence that quotes what DPDK complained about. A second
 * call in the same process is -EALREADY: DPDK cannot start twice. */
int fc_eal_start(int argc, char **argv);

/* Warnings and errors of DPDK since the start, one line, "; " between them;
 * empty where it had none. A device that fails its probe is found only here. */
void fc_eal_complaints(char *out, size_t room);

const char *fc_eal_version(void);
int fc_eal_has_hugepages(void);
/* "PA" or "VA": what devices are given as addresses. */
const char *fc_eal_iova_mode(void);

#endif
