/* Which flows lead between two hosts. */
#ifndef FC_HOST_PAIRS_H
#define FC_HOST_PAIRS_H

#include "fc_flow.h"

/* Flows by the pair of hosts they lead between: for a NAK, which names no flow. A record
 * keeps its addresses, so this grows with the table, whenever somebody asks. */
struct fc_host_pairs {
	uint64_t flows;                /* of the table, that are in here */
	uint32_t newest[FC_FLOWS_MAX]; /* by hash: index + 1 of the newest flow, 0: none */
	uint32_t older[FC_FLOWS_MAX];  /* by flow: of the next older one of its hash */
};

#endif
