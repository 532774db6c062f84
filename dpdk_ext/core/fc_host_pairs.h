/* Flows between two hosts. */
#ifndef FC_HOST_PAIRS_H
#define FC_HOST_PAIRS_H

#include "fc_flow.h"

/* Flows by their pair of hosts, to find the flow of a NAK, which does not name it. Addresses of a
 * record never change, so this index only grows with the table; it is extended on demand. */
struct fc_host_pairs {
	uint64_t flows;                /* number of flows in the index */
	uint32_t newest[FC_FLOWS_MAX]; /* by hash: index + 1 of the newest flow; 0: none */
	uint32_t older[FC_FLOWS_MAX];  /* by flow: index + 1 of the next older flow of its hash */
};

#endif
