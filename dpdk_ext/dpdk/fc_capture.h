/* The receive loop: from one queue of a port into one ring. Read by the compiler and by cffi. */
#ifndef FC_CAPTURE_H
#define FC_CAPTURE_H

#include <stdint.h>

struct fc_ring;
struct fc_dma;
struct fc_timestamps;
struct fc_capture;

enum {
	FC_BURST_MAX = 64,
	FC_FLIGHTS = 4096, /* most frames in flight; a power of two */
};

struct fc_capture_request {
	uint16_t port, queue;
	/* Microseconds of pause after a run of empty polls; 0: none, for a dedicated core. The
	 * pause doubles while no frame comes, up to idle_max_us, for which the source must be able
	 * to buffer frames. */
	uint32_t idle_us, idle_max_us;
	/* File sources: the frames of the file with their time stamps; NULL: a live source. */
	const struct fc_timestamps *table;
	/* Replay speed relative to the time stamps: 1.0 real time, 2.0 twice as fast, 0 unlimited.
	 */
	double speed;
	/* Stop after this many frames of the source; 0: at its end or when stopped. */
	uint64_t frames_max;
	struct fc_dma *engine; /* NULL: the CPU copies */
};

/* Continues from the ring's last commit: a file source skips the frames that were captured before
 * a restart. Returns 0, or -errno with a message (fc_error.h). */
int fc_capture_create(const struct fc_capture_request *request, struct fc_ring *ring,
		      struct fc_capture **out);
/* Runs in the calling thread until it is stopped or the source has ended; no copy is in flight
 * when it returns. Returns 0, or -errno (see fc_error.h): the file delivered fewer frames than it
 * has, or a copy engine hangs. */
int fc_capture_run(struct fc_capture *capture);
/* Callable from any thread. */
void fc_capture_stop(struct fc_capture *capture);
/* Adds frames that the interface counted and this loop did not receive; included in the next
 * commit. */
void fc_capture_note_missed(struct fc_capture *capture, uint64_t frames);
/* After fc_capture_run has returned: commits what was added since. */
void fc_capture_settle(struct fc_capture *capture);
void fc_capture_destroy(struct fc_capture *capture);

#endif
