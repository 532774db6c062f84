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

/* Returns 0, or -errno (see fc_error.h): not a capture, a link type other than Ethernet, a newer
 * major version, an empty file. */
int fc_pcap_open(const char *path, struct fc_pcap **out);
void fc_pcap_close(struct fc_pcap *pcap);

/* 1: `out` is the next frame; 0: the end; -EBADMSG: the file is torn, the frames before were
 * delivered (fc_last_error() has the byte); -EPROTO: an interface of a pcapng file is not
 * Ethernet. */
int fc_pcap_next(struct fc_pcap *pcap, struct fc_pcap_frame *out);
void fc_pcap_rewind(struct fc_pcap *pcap);
/* Number of frames delivered since open or rewind. */
uint64_t fc_pcap_position(const struct fc_pcap *pcap);
/* Smallest snap length in the file; 0: none stated. */
uint32_t fc_pcap_snaplen(const struct fc_pcap *pcap);

/* Copies up to `limit` frames to `ring` and publishes once; stops early if the ring is full.
 * `commit` has counters and source_frames and is updated. Returns the number of frames; 0 at the
 * end or if the ring is full (fc_pcap_ended distinguishes them); or the error of fc_pcap_next. */
int64_t fc_pcap_fill(struct fc_pcap *pcap, struct fc_ring *ring, uint64_t limit,
		     struct fc_capture_commit *commit);
int fc_pcap_ended(const struct fc_pcap *pcap);

#endif
