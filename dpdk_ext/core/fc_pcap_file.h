/* An open capture file, for both formats. Everything that is read is checked against the end of
 * the file. */
#ifndef FC_PCAP_FILE_H
#define FC_PCAP_FILE_H

#include <stdbool.h>
#include <string.h>

#include "fc_error.h"
#include "fc_pcap.h"

enum {
	FC_PCAP_ETHERNET = 1, /* the link type */
	FC_PCAP_INTERFACES_MAX = 64,
	FC_PCAP_FRAME_BYTES_MAX = 262144,
	FC_PCAPNG_SECTION = 0x0a0d0d0a, /* the first block of a pcapng file */
};

struct fc_pcap_interface {
	uint32_t snaplen;
	uint64_t ticks_per_second;
};

struct fc_pcap {
	struct fc_map map;
	char path[256];
	uint64_t at, start;
	uint64_t delivered;
	uint64_t let_go; /* offset up to which pages were released */
	struct fc_pcap_interface interfaces[FC_PCAP_INTERFACES_MAX];
	uint32_t interfaces_used;
	uint32_t snaplen_least;
	bool swapped, next_generation, nanoseconds, ended;
	enum fc_error_number torn; /* what is wrong with the file; 0: nothing so far */
	bool foreign;              /* true: an interface is not Ethernet */
	uint16_t foreign_link;     /* its link type */
};

static inline uint32_t fc_pcap_word32(const struct fc_pcap *pcap, uint64_t at)
{
	uint32_t value;

	memcpy(&value, pcap->map.base + at, sizeof value);
	return pcap->swapped ? __builtin_bswap32(value) : value;
}

static inline uint16_t fc_pcap_word16(const struct fc_pcap *pcap, uint64_t at)
{
	uint16_t value;

	memcpy(&value, pcap->map.base + at, sizeof value);
	return pcap->swapped ? __builtin_bswap16(value) : value;
}

static inline bool fc_pcap_has(const struct fc_pcap *pcap, uint64_t at, uint64_t bytes)
{
	return bytes <= pcap->map.bytes && at <= pcap->map.bytes - bytes;
}

/* Returns -EBADMSG, now and in all later calls; the file ends here. why: a TORN_ row. */
int fc_pcap_torn(struct fc_pcap *pcap, enum fc_error_number why);
/* Returns -EPROTO, now and in all later calls. */
int fc_pcap_not_ethernet(struct fc_pcap *pcap, uint32_t link_type);
void fc_pcap_note_snaplen(struct fc_pcap *pcap, uint32_t snaplen);

/* fc_pcap_next for a pcapng file. */
int fc_pcapng_next(struct fc_pcap *pcap, struct fc_pcap_frame *out);

#endif
