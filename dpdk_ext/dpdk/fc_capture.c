#include "fc_capture_state.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_prefetch.h>

#include "fc_error.h"

#define SECOND_NS 1000000000ull

enum {
	SPIN_POLLS = 64,             /* empty polls before the first pause */
	REST_POLLS = 64,             /* empty polls with one pause length before it doubles */
	END_POLLS = 1024,            /* empty polls after which a file source has ended */
	LAST_POLLS = 1024,           /* polls after a stop, at a source that never runs empty */
	PACE_SLEEP_NS_MAX = 1000000, /* longest sleep, so that a stop is noticed */
	HANG_S = 5,                  /* seconds; copy engines need microseconds */
};

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static void rest_ns(uint64_t ns)
{
	const struct timespec pause = { (time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS) };

	nanosleep(&pause, NULL);
}

int fc_capture_create(const struct fc_capture_request *request, struct fc_ring *ring,
		      struct fc_capture **out)
{
	*out = NULL;
	struct fc_capture *capture = calloc(1, sizeof *capture);
	if (!capture)
		return fc_fail(ENOMEM, CAPTURE_LOOP_WITHOUT_MEMORY);
	capture->want = *request;
	capture->ring = ring;
	const int code = fc_copies_create(&capture->copies, FC_FLIGHTS, request->engine);
	if (code < 0) {
		free(capture);
		return code;
	}
	fc_ring_capture_counters(ring, &capture->commit);
	capture->before = capture->commit.counters;
	capture->missed = capture->before.interface_missed_frames;
	capture->position = fc_ring_head(ring);
	capture->source_frame = capture->commit.source_frames;
	capture->skip = request->table ? capture->source_frame : 0;
	if (request->queue == 0)
		(void)rte_eth_stats_reset(request->port); /* counted on top of `before` */
	*out = capture;
	return 0;
}

void fc_capture_destroy(struct fc_capture *capture)
{
	if (!capture)
		return;
	fc_copies_destroy(&capture->copies);
	free(capture);
}

void fc_capture_stop(struct fc_capture *capture)
{
	FC_STORE_RELEASE(&capture->stop, 1u); /* pairs with fc_capture_run() */
}

void fc_capture_note_missed(struct fc_capture *capture, uint64_t frames)
{
	FC_STORE_RELEASE(&capture->missed, frames); /* pairs with read_stats() */
}

/* The NIC counts per port, so only the first queue's ring records these counters. */
static void read_stats(struct fc_capture *capture)
{
	struct fc_capture_counters *counters = &capture->commit.counters;
	struct rte_eth_stats stats;

	counters->interface_missed_frames = FC_LOAD_ACQUIRE(&capture->missed);
	if (capture->want.queue || rte_eth_stats_get(capture->want.port, &stats) < 0)
		return;
	counters->nic_missed_frames = capture->before.nic_missed_frames + stats.imissed;
	counters->nic_no_mbuf_frames = capture->before.nic_no_mbuf_frames + stats.rx_nombuf;
	counters->nic_error_frames = capture->before.nic_error_frames + stats.ierrors;
}

void fc_capture_settle(struct fc_capture *capture)
{
	read_stats(capture);
	fc_ring_publish(capture->ring, 0, &capture->commit);
}

static void step_copies(struct fc_capture *capture)
{
	fc_copies_submit(&capture->copies);
	fc_copies_complete(&capture->copies);
	fc_retire(capture);
}

/* Frames to poll for: a full ring pauses a file source, never a live one; each copy in flight
 * needs an entry in fc_copies. */
static uint32_t poll_limit(struct fc_capture *capture)
{
	uint64_t limit = FC_BURST_MAX;

	if (fc_copies_room(&capture->copies) < FC_BURST_MAX)
		return 0;
	if (!capture->ring->header->live_source && !fc_ring_is_full(capture)) {
		const uint64_t room = capture->ring->mask + 1 - (capture->position - capture->tail);

		limit = room < limit ? room : limit;
	} else if (!capture->ring->header->live_source) {
		return 0;
	}
	return (uint32_t)limit;
}

/* Polls the source if no frames are pending. */
static void take_frames(struct fc_capture *capture)
{
	if (capture->polled_first < capture->polled_count)
		return;
	capture->polled_first = 0;
	capture->polled_count = 0;
	const uint32_t limit = poll_limit(capture);
	if (!limit)
		return;
	const uint16_t polled = rte_eth_rx_burst(capture->want.port, capture->want.queue,
						 capture->polled, (uint16_t)limit);
	capture->polled_count = polled;
	capture->empty_polls = polled ? 0 : capture->empty_polls + 1;
	if (capture->skip) {
		const uint32_t passed = capture->skip < polled ? (uint32_t)capture->skip : polled;

		rte_pktmbuf_free_bulk(capture->polled, passed);
		capture->polled_first = passed;
		capture->skip -= passed;
	}
}

/* Nanoseconds until frame `source_frame` is due, counted from the first frame. */
static uint64_t due_in_ns(struct fc_capture *capture, uint64_t now_ns)
{
	const struct fc_timestamps *table = capture->want.table;

	if (capture->want.speed <= 0 || !table || capture->source_frame >= table->frames)
		return 0;
	const uint64_t stamp_ns = table->stamps[capture->source_frame].timestamp_ns;
	if (!capture->pace_start_ns) {
		capture->pace_start_ns = now_ns;
		capture->pace_stamp_ns = stamp_ns;
	}
	if (stamp_ns <= capture->pace_stamp_ns)
		return 0;
	const double after_ns = (double)(stamp_ns - capture->pace_stamp_ns) / capture->want.speed;
	const double gone_ns = (double)(now_ns - capture->pace_start_ns);
	return after_ns > gone_ns ? (uint64_t)(after_ns - gone_ns) : 0;
}

static bool finished(const struct fc_capture *capture)
{
	const struct fc_capture_request *want = &capture->want;

	if (want->frames_max && capture->source_frame >= want->frames_max)
		return true;
	return want->table && capture->source_frame >= want->table->frames;
}

/* Accepts the frames that are due; returns their number. */
static uint32_t accept_due(struct fc_capture *capture)
{
	const uint64_t now_ns = clock_ns(CLOCK_REALTIME);
	const uint64_t pace_ns = capture->want.speed > 0 ? clock_ns(CLOCK_MONOTONIC) : 0;
	const uint32_t begin = capture->polled_first;

	for (; capture->polled_first < capture->polled_count; capture->polled_first++) {
		const uint32_t ahead = capture->polled_first + 4;

		if (finished(capture) || due_in_ns(capture, pace_ns))
			break;
		if (ahead < capture->polled_count)
			rte_prefetch0(rte_pktmbuf_mtod(capture->polled[ahead], void *));
		fc_admit(capture, capture->polled[capture->polled_first], now_ns);
	}
	if (now_ns >= capture->stats_due_ns) {
		capture->stats_due_ns = now_ns + SECOND_NS;
		read_stats(capture);
		fc_ring_publish(capture->ring, 0, &capture->commit);
	}
	return capture->polled_first - begin;
}

/* Pause in microseconds. It grows while the source is quiet; polling without a pause takes a third
 * of a core. */
static uint32_t rest_us(const struct fc_capture *capture)
{
	uint32_t rest_us = capture->want.idle_us;

	for (uint32_t polls = SPIN_POLLS + REST_POLLS;
	     polls < capture->empty_polls && rest_us < capture->want.idle_max_us;
	     polls += REST_POLLS)
		rest_us = rest_us * 2 < capture->want.idle_max_us ? rest_us * 2
								  : capture->want.idle_max_us;
	return rest_us;
}

static void idle(struct fc_capture *capture)
{
	if (capture->polled_first < capture->polled_count) {
		const uint64_t due_ns = due_in_ns(capture, clock_ns(CLOCK_MONOTONIC));

		rest_ns(due_ns < PACE_SLEEP_NS_MAX ? due_ns : PACE_SLEEP_NS_MAX);
	} else if (capture->want.idle_us &&
		   (capture->empty_polls > SPIN_POLLS || !poll_limit(capture))) {
		rest_ns(rest_us(capture) * 1000ull);
	}
}

/* Waits for the copies in flight and frees frames that were polled but not accepted. */
static int wind_up(struct fc_capture *capture)
{
	const uint64_t give_up_ns = clock_ns(CLOCK_MONOTONIC) + HANG_S * SECOND_NS;

	rte_pktmbuf_free_bulk(capture->polled + capture->polled_first,
			      capture->polled_count - capture->polled_first);
	capture->polled_first = capture->polled_count = 0;
	while (capture->copies.first != capture->copies.next) {
		step_copies(capture);
		if (clock_ns(CLOCK_MONOTONIC) > give_up_ns)
			return fc_fail(EIO, COPIES_NOT_FINISHED,
				       .numbers = { capture->copies.next - capture->copies.first,
						    HANG_S });
	}
	fc_capture_settle(capture);
	return 0;
}

/* Accepts the frames that were in the NIC's queue when the stop came. */
static void sweep(struct fc_capture *capture)
{
	if (!capture->ring->header->live_source)
		return;
	for (int turn = 0; turn < LAST_POLLS && !finished(capture); turn++) {
		take_frames(capture);
		if (!accept_due(capture))
			return;
		step_copies(capture);
	}
}

static int receive(struct fc_capture *capture)
{
	const struct fc_timestamps *table = capture->want.table;

	while (!FC_LOAD_ACQUIRE(&capture->stop) && !finished(capture)) {
		take_frames(capture);
		const uint32_t taken = accept_due(capture);
		step_copies(capture);
		if (taken)
			continue;
		if (table && capture->empty_polls >= END_POLLS &&
		    capture->copies.first == capture->copies.next)
			return fc_fail(ENODATA, SOURCE_ENDED_EARLY,
				       .numbers = { capture->source_frame, table->frames });
		idle(capture);
	}
	sweep(capture);
	return 0;
}

int fc_capture_run(struct fc_capture *capture)
{
	/* A thread that DPDK does not know has no mbuf cache and polls at half the rate. */
	const bool foreign = rte_lcore_id() == LCORE_ID_ANY;

	if (foreign && rte_thread_register() < 0)
		return fc_fail(rte_errno, THREAD_NOT_REGISTERED,
			       .texts = { rte_strerror(rte_errno) });
	int code = receive(capture);
	const int wound_up = wind_up(capture);
	if (wound_up < 0)
		code = wound_up; /* whose reason was stored last */
	if (foreign)
		rte_thread_unregister();
	return code;
}
