/* A network inside one process behind dpdk_ext/lab/fcl_net.h: it delivers at once, loses nothing and
 * remembers every message. For tests of what is above the network. */
#pragma once

#include <stdint.h>

struct loop_message {
	uint32_t sender; /* sending ends of the process, counted as they were opened */
	uint32_t bytes, capacity;
	uint32_t flag; /* second word of the payload: the flag of a first LL line */
	uint64_t va;
};

/* Copies the oldest messages not yet read, at most `room`; how many. */
uint32_t loop_messages(struct loop_message *out, uint32_t room);
/* How many sending ends were opened so far. */
uint32_t loop_senders(void);
