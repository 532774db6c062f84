/* libFuzzer on capture files, pcap and pcapng: the input is the file. Read twice it says the
 * same, every byte of a frame can be read, and a ring takes the frames that were counted. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fc_pcap.h"

enum { SLOTS = 256, FRAMES_MAX = 4096 };

static struct fc_ring ring;
static volatile uint8_t seen;

static void demand(int holds, const char *promise)
{
	if (!holds) {
		fprintf(stderr, "broken promise: %s\n", promise);
		abort();
	}
}

static void open_ring(void)
{
	char path[64];

	snprintf(path, sizeof path, "/dev/shm/fc-fuzz-pcap-%d", (int)getpid());
	demand(!fc_ring_create(path, SLOTS, 4352, 1, &ring), "a ring opens");
	unlink(path);
}

/* Frames until the end or a tear; `sum` mixes their lengths and first bytes. */
static uint64_t read_all(struct fc_pcap *pcap, uint64_t *sum, int *last)
{
	struct fc_pcap_frame frame;
	uint64_t count = 0;

	*sum = 0;
	while (count < FRAMES_MAX && (*last = fc_pcap_next(pcap, &frame)) == 1) {
		for (uint32_t i = 0; i < frame.frame_bytes; i++)
			seen ^= frame.bytes[i];
		*sum = *sum * 31 + frame.frame_bytes + frame.wire_bytes * 7u + frame.timestamp_ns;
		count++;
		demand(fc_pcap_position(pcap) == count, "delivered frames are counted");
	}
	return count;
}

static void fill_ring(struct fc_pcap *pcap, uint64_t frames)
{
	struct fc_capture_commit commit;
	int64_t taken;

	memset(&commit, 0, sizeof commit);
	fc_pcap_rewind(pcap);
	for (uint64_t left = frames; left; left -= (uint64_t)taken) {
		const uint64_t limit = left < SLOTS / 2 ? left : SLOTS / 2;
		taken = fc_pcap_fill(pcap, &ring, limit, &commit);
		demand(taken > 0 && (uint64_t)taken <= limit, "the frames counted can be had");
		__atomic_store_n(&ring.reader->tail, fc_ring_head(&ring), __ATOMIC_RELEASE);
	}
	demand(commit.source_frames == frames, "frames taken from the file are counted");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fc_pcap *pcap = NULL;
	char path[64];
	const int file = memfd_create("capture", MFD_CLOEXEC);
	uint64_t first_sum, again_sum;
	int first_end, again_end;

	if (!ring.header)
		open_ring();
	demand(file >= 0 && write(file, data, size) == (ssize_t)size, "a memory file is written");
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	if (!fc_pcap_open(path, &pcap)) {
		const uint64_t frames = read_all(pcap, &first_sum, &first_end);
		fc_pcap_rewind(pcap);
		demand(read_all(pcap, &again_sum, &again_end) == frames && again_sum == first_sum &&
			       again_end == first_end,
		       "a file read twice says the same");
		fill_ring(pcap, frames);
		fc_pcap_close(pcap);
	}
	close(file);
	return 0;
}
