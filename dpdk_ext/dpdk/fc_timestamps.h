/* Time stamps and wire lengths of the frames of a file, which DPDK's net_pcap does not pass on: it
 * adds nanoseconds to microseconds (22.11 to 24.11), which cannot be undone, and it does not
 * report the end of the file. So the file is read once before. Read by the compiler and by cffi. */
#ifndef FC_TIMESTAMPS_H
#define FC_TIMESTAMPS_H

#include <stdint.h>

struct fc_stamp {
	uint64_t timestamp_ns;
	uint32_t frame_bytes, wire_bytes;
};

struct fc_timestamps {
	uint64_t frames;
	struct fc_stamp *stamps; /* [frames] */
};

/* Returns 0, or -errno with the message of fc_pcap: not a capture, or torn. */
int fc_timestamps_read(const char *path, struct fc_timestamps *out);
void fc_timestamps_free(struct fc_timestamps *table);

#endif
