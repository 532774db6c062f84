/* Frames out of memory at a stated rate, as a port brings them: whatever the chain does, they come.
 * They wait in so many descriptors, as in a NIC's queue; what finds none free is dropped there, what
 * finds the ring full is dropped here, as fc_capture.c does. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fc_ring.h"

enum { RECORD_BYTES = 16, BURST = 32, AHEAD = 8 };

typedef int (*put_fn)(void *, uint64_t, const uint8_t *, uint32_t, uint32_t, uint64_t, uint64_t);
typedef void (*publish_fn)(void *, uint64_t, struct fc_capture_commit *);

struct bench_feed {
	const uint8_t *records; /* pcap's */
	uint64_t bytes;
	double bits_per_ns;
	uint32_t descriptors, idle_us;
	void *ring, *put, *publish;
	struct fc_capture_commit *commit;
	/* in memory that others watch: frames that came, ns since 1970 of the first and of the last,
	 * 1 once all are taken, most frames that waited at once; [5]: whoever watches sets it: begin */
	uint64_t *told;
	uint32_t stop;
};

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static uint32_t length_of(const uint8_t *record)
{
	uint32_t bytes;

	memcpy(&bytes, record + 8, sizeof bytes);
	return bytes;
}

static void take(struct bench_feed *feed, const uint8_t *record, uint64_t *pending, uint64_t now_ns)
{
	struct fc_capture_counters *counters = &feed->commit->counters;
	const uint32_t bytes = length_of(record);

	counters->rx_frames++;
	counters->rx_bytes += bytes;
	if (((put_fn)feed->put)(feed->ring, *pending, record + RECORD_BYTES, bytes, bytes, now_ns,
				feed->commit->source_frames++))
		counters->ring_full_frames++;
	else
		++*pending;
}

/* Until all frames came and were taken, or it is asked to stop. -1: no memory. */
int bench_feed(struct bench_feed *feed)
{
	const uint8_t **queue = calloc(feed->descriptors, sizeof *queue);
	const uint8_t *next = feed->records, *end = feed->records + feed->bytes;
	uint64_t first = 0, last = 0, came = 0;
	double bits = 0;

	if (!queue)
		return -1;
	while (!__atomic_load_n(&feed->stop, __ATOMIC_ACQUIRE) &&
	       !__atomic_load_n(&feed->told[5], __ATOMIC_ACQUIRE))
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	const uint64_t start_ns = clock_ns(CLOCK_MONOTONIC);
	feed->told[1] = clock_ns(CLOCK_REALTIME);
	while (!__atomic_load_n(&feed->stop, __ATOMIC_ACQUIRE) && (next < end || first < last)) {
		const uint64_t gone_ns = clock_ns(CLOCK_MONOTONIC) - start_ns;
		const double due = (double)gone_ns * feed->bits_per_ns;
		uint64_t pending = 0;

		for (; next < end && bits < due; came++) {
			const uint32_t bytes = length_of(next);

			if (last - first < feed->descriptors)
				queue[last++ % feed->descriptors] = next;
			else
				feed->commit->counters.nic_missed_frames++;
			bits += 8.0 * bytes;
			next += RECORD_BYTES + bytes;
		}
		if (last - first > feed->told[4])
			feed->told[4] = last - first;
		__atomic_store_n(&feed->told[0], came, __ATOMIC_RELEASE);
		if (next == end && !feed->told[2])
			feed->told[2] = clock_ns(CLOCK_REALTIME);
		const uint64_t now_ns = clock_ns(CLOCK_REALTIME);
		for (int n = 0; n < BURST && first < last; n++, first++) {
			const uint8_t *record = queue[first % feed->descriptors];

			if (first + AHEAD < last) {
				const uint8_t *later = queue[(first + AHEAD) % feed->descriptors];
				for (int line = 0; line < 8; line++)
					__builtin_prefetch(later + 64 * line);
			}
			take(feed, record, &pending, now_ns);
		}
		((publish_fn)feed->publish)(feed->ring, pending, feed->commit);
		if (first == last && next < end) {
			const uint64_t pause_ns = (uint64_t)feed->idle_us * 1000;
			const struct timespec rest = { 0, (long)pause_ns };

			if (pause_ns)
				nanosleep(&rest, NULL);
		}
	}
	__atomic_store_n(&feed->told[3], 1, __ATOMIC_RELEASE);
	free(queue);
	return 0;
}
