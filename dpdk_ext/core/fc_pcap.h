/* Capture files without DPDK: pcap and pcapng, either byte order, read through a
 * mapping. Read by the compiler and by cffi. */
#ifndef FC_PCAP_H
#define FC_PCAP_H

#include "fc_ring_api.h"

struct fc_pcap_frame {
	const uint8_t *bytes;
	uint32_t frame_bytes;  /* in the file */
	uint32_t wire_bytes;   /* as sent */
	uint64_t timestamp_ns; /* 0 where the file tells none */
};

struct fc_pcap;

/* 0, or -errno with a sentence: not a capture, a link type other than Ethernet,
 * a newer major version, an empty file. */
int fc_pcap_open(const char *path, struct fc_pcap **out);
void fc_pcap_close(struct fc_pcap *pcap);

/* 1: `out` is the next frame; 0: the end; -EBADMSG with a sentence naming the
 * byte offset where the file is torn (the frames before it were delivered);
 * -EPROTO with a sentence where an interface of a pcapng file is not Ethernet. */
int fc_pcap_next(struct fc_pcap *pcap, struct fc_pcap_frame *out);
void fc_pcap_rewind(struct fc_pcap *pcap);
/* Frames delivered since open or rewind. */
uint64_t fc_pcap_position(const struct fc_pcap *pcap);
/* Bytes of the file before the next frame, or before the tear. */
uint64_t fc_pcap_offset(const struct fc_pcap *pcap);
/* What is wrong with the file at fc_pcap_offset; NULL: nothing so far. */
const char *fc_pcap_torn_why(const struct fc_pcap *pcap);
/* The link type of an interface that is not Ethernet, where one was met; else -1. */
int32_t fc_pcap_foreign_link(const struct fc_pcap *pcap);
/* Smallest snap length stated by the file, 0 for none. */
uint32_t fc_pcap_snaplen(const struct fc_pcap *pcap);

/* Moves up to `limit` frames into `ring` and publishes once; stops early when
 * the ring is full. `commit` carries counters and source_frames and is updated.
 * Returns frames taken from the file, 0 at its end or when the ring is full
 * (fc_pcap_ended tells which), or the error of fc_pcap_next. */
int64_t fc_pcap_fill(struct fc_pcap *pcap, struct fc_ring *ring, uint64_t limit,
		     struct fc_capture_commit *commit);
int fc_pcap_ended(const struct fc_pcap *pcap);

#endif
