/* The receive loop: one queue of a port into one ring. Read by the compiler and
 * by cffi. */
#ifndef FC_CAPTURE_H
#define FC_CAPTURE_H

#include <stdint.h>

struct fc_ring;
struct fc_dma;
struct fc_timetable;
struct fc_capture;

enum {
	FC_BURST_MAX = 64,
	FC_FLIGHTS = 4096, /* frames under way at most; a power of two */
};

struct fc_capture_request {
	uint16_t port, queue;
	/* Pause after a run of empty polls; 0 spins, for a core of its own. It doubles while
	 * nothing comes, up to the second, which the source's own room for frames must bear. */
	uint32_t idle_us, idle_max_us;
	/* File sources: the frames there are, with their times; NULL for live ones. */
	const struct fc_timetable *table;
	/* 1.0: as fast as the time stamps say, 2.0 twice as fast, 0: as fast as may be. */
	double speed;
	/* End after so many frames of the source; 0 goes on to its end or until stopped. */
	uint64_t frames_max;
	struct fc_dma *engine; /* NULL: the CPU copies */
};

/* Goes on where the ring's last commit says: a file source passes over the
 * frames that were taken before a restart. */
int fc_capture_create(const struct fc_capture_request *request, struct fc_ring *ring,
		      struct fc_capture **out);
/* Runs on the calling thread until stopped or until the source has ended, with
 * nothing under way when it returns. 0, or -errno with a sentence: the file gave
 * fewer frames than it has, or an engine hangs. */
int fc_capture_run(struct fc_capture *capture);
/* From any thread. */
void fc_capture_stop(struct fc_capture *capture);
/* Frames the interface's own counters saw and we did not, for the next commit. */
void fc_capture_note_missed(struct fc_capture *capture, uint64_t frames);
/* After run has returned: commits what was noted since. */
void fc_capture_settle(struct fc_capture *capture);
void fc_capture_destroy(struct fc_capture *capture);

#endif
