/* Two threads on one ring, as capture and a reader are two processes: what was
 * published is whole, what is full is refused. Built with -fsanitize=thread. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "fc_ring_ops.h"

enum { FRAMES = 200000, FRAME_BYTES = 96 };

static struct fc_ring ring;

static void *produce(void *unused)
{
	struct fc_capture_commit commit = { 0 };
	uint8_t frame[FRAME_BYTES];

	for (uint64_t n = 0; n < FRAMES;) {
		memset(frame, (int)(n & 0xff), sizeof frame);
		if (fc_ring_put(&ring, 0, frame, sizeof frame, sizeof frame, n, n) < 0) {
			sched_yield();
			continue;
		}
		commit.counters.rx_frames++;
		fc_ring_publish(&ring, 1, &commit);
		n++;
	}
	fc_ring_end_source(&ring);
	return unused;
}

int main(int count, char **words)
{
	pthread_t producer;
	uint64_t at = 0, bad = 0;

	if (count != 2 || fc_ring_create(words[1], 64, 256, 1, &ring) < 0)
		return 2;
	unlink(words[1]);
	pthread_create(&producer, NULL, produce, NULL);
	while (at < FRAMES) {
		const uint64_t head = fc_ring_head(&ring);

		if (at == head)
			sched_yield();
		for (; at < head; at++) {
			const struct fc_slot *slot = fc_ring_slot(&ring, at);
			const uint8_t *frame = fc_ring_frame(&ring, at);
			bad += slot->source_frame != at || frame[0] != (at & 0xff) ||
			       frame[FRAME_BYTES - 1] != (at & 0xff);
		}
		FC_STORE_RELEASE(&ring.reader->tail, at);
	}
	pthread_join(producer, NULL);
	bad += fc_ring_source_end(&ring) != FRAMES;
	printf("%d frames %s\n", FRAMES, bad ? "differ" : "equal");
	return bad != 0;
}
