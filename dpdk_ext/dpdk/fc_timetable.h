/* What net_pcap does not hand on: when each frame of a file was captured and how
 * long it was on the wire. Its time stamps add nanoseconds to microseconds (in
 * 22.11 to 24.11 alike) and cannot be undone, and it knows no end of file; so
 * the file is read once beforehand. Read by the compiler and by cffi. */
#ifndef FC_TIMETABLE_H
#define FC_TIMETABLE_H

#include <stdint.h>

struct fc_stamp {
	uint64_t timestamp_ns;
	uint32_t frame_bytes, wire_bytes;
};

struct fc_timetable {
	uint64_t frames;
	struct fc_stamp *stamps; /* [frames] */
};

/* 0, or -errno with fc_pcap's sentence: no capture, or torn. */
int fc_timetable_read(const char *path, struct fc_timetable *out);
void fc_timetable_free(struct fc_timetable *table);

#endif
