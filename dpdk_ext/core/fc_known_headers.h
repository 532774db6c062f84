/* Headers that were decoded before. Packets in the middle of a message differ from each other in
 * their sequence number and payload only: one that has the headers of an earlier packet, as far as
 * decoding looks at them, is decoded as that one was, and is of the same flow. Not read by cffi. */
#ifndef FC_KNOWN_HEADERS_H
#define FC_KNOWN_HEADERS_H

#include "fc_flow_ops.h"

/* Whole words up to the end of the BTH over IPv6. */
#define FC_KNOWN_WORDS 10
/* A choice: 64 flows, of which more are too many for all this, seldom share a place. */
#define FC_KNOWN_PLACES 1024

/* Only plain headers are kept: Ethernet without tags, IP without options. */
#define FC_KNOWN_L3_AT sizeof(struct fc_ethernet)

struct fc_known_packet {
	uint64_t words[FC_KNOWN_WORDS]; /* without what decoding does not look at */
	struct fc_packet packet;        /* its psn and line flag are those of the newest one */
	struct fc_flow *flow;           /* NULL: nothing is known */
} __attribute__((aligned(FC_CACHE_LINE_BYTES)));

struct fc_known_headers {
	uint64_t looked_at[2][FC_KNOWN_WORDS]; /* over IPv4, over IPv6: ones where decoding looks */
	struct fc_known_packet at[FC_KNOWN_PLACES];
};

/* NULL: no memory. Freed by free(). */
struct fc_known_headers *fc_known_open(void);
/* The known packet that `frame` repeats, with this one's psn and line flag; NULL: none. */
struct fc_known_packet *fc_known_find(struct fc_known_headers *known, const uint8_t *frame,
				      uint32_t frame_bytes);
/* Keeps the headers of a packet of `flow` if later packets may repeat them. */
void fc_known_keep(struct fc_known_headers *known, const uint8_t *frame, const struct fc_packet *p,
		   struct fc_flow *flow);
/* A flow may no longer be the one that its key leads to. */
void fc_known_forget(struct fc_known_headers *known);

#endif
