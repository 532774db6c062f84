/* Frames out of memory at a stated rate, as a port brings them: whatever the chain does, they come.
 * They wait in so many descriptors, as in a NIC's queue; what finds none free is dropped there, what
 * finds the ring full is dropped here, as fc_capture.c does. Where frames lie and how long they are
 * stands in a dense table, as a NIC's completions do. */
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

struct frame {
	const uint8_t *at;
	uint64_t bytes;
};

/* All frames of the file, in its order. NULL: no memory. */
static struct frame *frames_of(const struct bench_feed *feed, uint64_t *count)
{
	const uint8_t *end = feed->records + feed->bytes;
	struct frame *frames = NULL;
	uint64_t room = 0;

	*count = 0;
	for (const uint8_t *next = feed->records; next < end;) {
		uint32_t bytes;

		if (*count == room) {
			room = room ? 2 * room : 1 << 16;
			struct frame *more = realloc(frames, room * sizeof *frames);
			if (!more) {
				free(frames);
				return NULL;
			}
			frames = more;
		}
		memcpy(&bytes, next + 8, sizeof bytes);
		frames[(*count)++] = (struct frame){ next + RECORD_BYTES, bytes };
		next += RECORD_BYTES + bytes;
	}
	return frames;
}

static void take(struct bench_feed *feed, const struct frame *frame, uint64_t *pending,
		 uint64_t now_ns)
{
	struct fc_capture_counters *counters = &feed->commit->counters;
	const uint32_t bytes = (uint32_t)frame->bytes;

	counters->rx_frames++;
	counters->rx_bytes += bytes;
	if (((put_fn)feed->put)(feed->ring, *pending, frame->at, bytes, bytes, now_ns,
				feed->commit->source_frames++))
		counters->ring_full_frames++;
	else
		++*pending;
}

/* Takes up to a burst of the frames that wait. */
static void take_burst(struct bench_feed *feed, const struct frame *const *queue, uint64_t *first,
		       uint64_t last)
{
	const uint64_t now_ns = clock_ns(CLOCK_REALTIME);
	uint64_t pending = 0;

	for (int n = 0; n < BURST && *first < last; n++, ++*first) {
		if (*first + AHEAD < last) {
			const uint8_t *later = queue[(*first + AHEAD) % feed->descriptors]->at;
			for (int line = 0; line < 8; line++)
				__builtin_prefetch(later + 64 * line);
		}
		take(feed, queue[*first % feed->descriptors], &pending, now_ns);
	}
	((publish_fn)feed->publish)(feed->ring, pending, feed->commit);
}

static void feed_frames(struct bench_feed *feed, const struct frame *next, const struct frame *end,
			const struct frame **queue)
{
	uint64_t first = 0, last = 0, came = 0;
	double bits = 0;

	const uint64_t start_ns = clock_ns(CLOCK_MONOTONIC);
	feed->told[1] = clock_ns(CLOCK_REALTIME);
	while (!__atomic_load_n(&feed->stop, __ATOMIC_ACQUIRE) && (next < end || first < last)) {
		const uint64_t gone_ns = clock_ns(CLOCK_MONOTONIC) - start_ns;
		const double due = (double)gone_ns * feed->bits_per_ns;

		for (; next < end && bits < due; came++, next++) {
			if (last - first < feed->descriptors)
				queue[last++ % feed->descriptors] = next;
			else
				feed->commit->counters.nic_missed_frames++;
			bits += 8.0 * (double)next->bytes;
		}
		if (last - first > feed->told[4])
			feed->told[4] = last - first;
		__atomic_store_n(&feed->told[0], came, __ATOMIC_RELEASE);
		if (next == end && !feed->told[2])
			feed->told[2] = clock_ns(CLOCK_REALTIME);
		take_burst(feed, queue, &first, last);
		if (first == last && next < end && feed->idle_us)
			nanosleep(&(struct timespec){ 0, (long)feed->idle_us * 1000 }, NULL);
	}
}

/* Until all frames came and were taken, or it is asked to stop. -1: no memory. */
int bench_feed(struct bench_feed *feed)
{
	uint64_t count;
	struct frame *frames = frames_of(feed, &count);
	const struct frame **queue = calloc(feed->descriptors, sizeof *queue);

	if (!queue || !frames) {
		free(queue);
		free(frames);
		return -1;
	}
	while (!__atomic_load_n(&feed->stop, __ATOMIC_ACQUIRE) &&
	       !__atomic_load_n(&feed->told[5], __ATOMIC_ACQUIRE))
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	feed_frames(feed, frames, frames + count, queue);
	__atomic_store_n(&feed->told[3], 1, __ATOMIC_RELEASE);
	free(queue);
	free(frames);
	return 0;
}
