/* Reads capture files without DPDK, through a mapping: pcap and pcapng, either byte order. Read by
 * the compiler and by cffi. */
#ifndef FC_PCAP_H
#define FC_PCAP_H

#include "fc_ring_api.h"

struct fc_pcap_frame {
	const uint8_t *bytes;
	uint32_t frame_bytes;  /* bytes in the file */
	uint32_t wire_bytes;   /* bytes as sent */
	uint64_t timestamp_ns; /* 0: not in the file */
};

struct fc_pcap;

/* Returns 0, or -errno with a message: not a capture, a link type other than Ethernet, a newer
 * major version, an empty file. */
int fc_pcap_open(const char *path, struct fc_pcap **out);
void fc_pcap_close(struct fc_pcap *pcap);

/* 1: `out` is the next frame; 0: the end; -EBADMSG with a message that has the byte offset where
 * the file is torn (the frames before were delivered); -EPROTO with a message if an interface of a
 * pcapng file is not Ethernet. */
int fc_pcap_next(struct fc_pcap *pcap, struct fc_pcap_frame *out);
void fc_pcap_rewind(struct fc_pcap *pcap);
/* Number of frames delivered since open or rewind. */
uint64_t fc_pcap_position(const struct fc_pcap *pcap);
/* Byte offset of the next frame, or of the torn place. */
uint64_t fc_pcap_offset(const struct fc_pcap *pcap);
/* What is wrong with the file at fc_pcap_offset; NULL: nothing so far. */
const char *fc_pcap_torn_why(const struct fc_pcap *pcap);
/* Link type of an interface that is not Ethernet; -1: none so far. */
int32_t fc_pcap_foreign_link(const struct fc_pcap *pcap);
/* Smallest snap length in the file; 0: none stated. */
uint32_t fc_pcap_snaplen(const struct fc_pcap *pcap);

/* Copies up to `limit` frames to `ring` and publishes once; stops early if the ring is full.
 * `commit` has counters and source_frames and is updated. Returns the number of frames; 0 at the
 * end or if the ring is full (fc_pcap_ended distinguishes them); or the error of fc_pcap_next. */
int64_t fc_pcap_fill(struct fc_pcap *pcap, struct fc_ring *ring, uint64_t limit,
		     struct fc_capture_commit *commit);
int fc_pcap_ended(const struct fc_pcap *pcap);

#endif
