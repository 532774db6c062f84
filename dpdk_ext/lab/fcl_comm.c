#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fcl_comm_state.h"
#include "fcl_error.h"

enum {
	DRAIN_LIMIT_MS = 1000, /* what was sent last may still wait for its ACK when we close */
	BUFFER_GRAIN = 64 << 10,
	LEAST_BUFFER_BYTES = 256 << 10,
	MOST_BUFFER_BYTES = 64 << 20,
	MOST_RANKS = 1 << 16,
};

struct fcl_comm **fcl_comm_next(struct fcl_comm *comm)
{
	return &comm->next;
}

/* Takes over what was submitted since; fails it where the communicator has failed. */
static void take_submitted(struct fcl_comm *comm)
{
	struct fcl_job *job;

	pthread_mutex_lock(&comm->node->lock);
	job = comm->submitted;
	comm->submitted = NULL;
	pthread_mutex_unlock(&comm->node->lock);
	while (job != NULL) {
		struct fcl_job *next = job->next;
		const struct fcl_operation *operation = &job->operation;
		struct fcl_lane *lane = &comm->collectives;

		job->next = NULL;
		if (operation->kind == FCL_SEND)
			lane = &fcl_peer_find(comm, operation->peer)->sends;
		if (operation->kind == FCL_RECV)
			lane = &fcl_peer_find(comm, operation->peer)->receives;
		if (comm->failed)
			fcl_job_finish(comm, job, comm->failed, comm->sentence);
		else if (lane->first == NULL)
			lane->first = lane->last = job;
		else
			lane->last = lane->last->next = job;
		job = next;
	}
}

static void fail_lane(struct fcl_comm *comm, struct fcl_lane *lane)
{
	for (struct fcl_job *job = lane->first, *next; job != NULL; job = next) {
		next = job->next;
		fcl_job_finish(comm, job, comm->failed, comm->sentence);
	}
	lane->first = NULL;
}

void fcl_comm_fail(struct fcl_comm *comm, int error, const char *sentence)
{
	if (comm->failed)
		return;
	pthread_mutex_lock(&comm->node->lock);
	comm->failed = comm->refused = error;
	snprintf(comm->sentence, sizeof comm->sentence, "%s", sentence);
	pthread_mutex_unlock(&comm->node->lock);
	take_submitted(comm);
	fail_lane(comm, &comm->collectives);
	for (struct fcl_peer *peer = comm->peers; peer != NULL; peer = peer->next) {
		fail_lane(comm, &peer->sends);
		fail_lane(comm, &peer->receives);
	}
}

/* Moves what the proxies of one neighbour relation can move; counts what waits for an ACK. */
static int progress_ends(const struct fcl_comm *comm, struct fcl_ends *ends, uint64_t *waiting)
{
	int work = 0;

	for (uint32_t channel = 0; channel < comm->settings.channels; channel++) {
		struct fcl_in *from = &ends->in[channel];
		struct fcl_out *to = &ends->out[channel];
		int in = from->connected ? fcl_in_progress(from) : 0;
		int out = in >= 0 && to->connected ? fcl_out_progress(to) : 0;

		if (in < 0 || out < 0)
			return in < 0 ? in : out;
		work += in + out;
		if (to->comm != NULL)
			*waiting += to->filled - to->acknowledged;
	}
	return work;
}

static int progress_links(struct fcl_comm *comm, uint64_t *waiting)
{
	int work = 0;

	for (struct fcl_link *link = comm->links; link != NULL; link = link->next)
		for (uint32_t room = 0; room < FCL_ROOMS; room++) {
			int moved = progress_ends(comm, &link->rooms[room], waiting);

			if (moved < 0)
				return moved;
			work += moved;
		}
	return work;
}

static int progress_all(struct fcl_comm *comm, uint64_t *waiting)
{
	int work = fcl_lane_progress(comm, &comm->collectives);
	int moved = work < 0 ? work : progress_links(comm, waiting);

	for (struct fcl_peer *peer = comm->peers; moved >= 0 && peer != NULL; peer = peer->next) {
		struct fcl_lane *const lanes[] = { &peer->sends, &peer->receives };

		work += moved;
		for (int lane = 0; lane < 2; lane++) {
			moved = fcl_lane_progress(comm, lanes[lane]);
			if (moved < 0)
				return moved;
			work += moved;
		}
		moved = progress_ends(comm, &peer->ends, waiting);
	}
	return moved < 0 ? moved : work + moved;
}

int fcl_comm_progress(struct fcl_comm *comm)
{
	uint64_t waiting = 0;
	int work = 0;

	take_submitted(comm);
	if (!comm->failed) {
		work = progress_all(comm, &waiting);
		if (work < 0) {
			fcl_comm_fail(comm, work, fcl_error());
			work = 1;
		}
	}
	pthread_mutex_lock(&comm->node->lock);
	if (comm->draining && !comm->drained && (waiting == 0 || comm->failed)) {
		comm->drained = 1;
		pthread_cond_broadcast(&comm->node->changed);
	}
	pthread_mutex_unlock(&comm->node->lock);
	return work;
}

static int check_settings(const struct fcl_comm_settings *settings)
{
	uint32_t buffer = settings->buffer_bytes;

	if (settings->ranks == 0 || settings->ranks > MOST_RANKS ||
	    settings->rank >= settings->ranks)
		return fcl_fail(EINVAL, "rank %u of %u ranks is none", settings->rank,
				settings->ranks);
	if (settings->channels == 0 || settings->channels > FCL_MOST_CHANNELS)
		return fcl_fail(EINVAL, "%u channels: 1 to %d are possible", settings->channels,
				FCL_MOST_CHANNELS);
	if (settings->protocol > FCL_ANY_PROTOCOL)
		return fcl_fail(EINVAL, "protocol %u is none", settings->protocol);
	if (buffer != 0 &&
	    (buffer % BUFFER_GRAIN || buffer < LEAST_BUFFER_BYTES || buffer > MOST_BUFFER_BYTES))
		return fcl_fail(
			EINVAL,
			"a Simple buffer of %u bytes: a multiple of %d from %d to %d is needed",
			buffer, BUFFER_GRAIN, LEAST_BUFFER_BYTES, MOST_BUFFER_BYTES);
	return 0;
}

static void release(struct fcl_comm *comm)
{
	while (comm->peers != NULL) {
		struct fcl_peer *peer = comm->peers;

		comm->peers = peer->next;
		fcl_peer_close(comm, peer);
	}
	fcl_links_close(comm);
	fcl_lane_close(comm, &comm->collectives);
	fcl_places_close(&comm->places);
}

static int open_on_node(void *argument)
{
	struct fcl_comm *comm = argument;
	int result = fcl_places_open(&comm->places, &comm->settings);

	if (result == 0)
		result = fcl_lane_open(comm, &comm->collectives);
	if (result < 0) {
		release(comm);
		return result;
	}
	/* The caller's memory. */
	comm->settings.orders = comm->settings.hosts = NULL;
	comm->settings.chains = comm->settings.head_ranks = NULL;
	comm->next = comm->node->comms;
	comm->node->comms = comm;
	return 0;
}

int fcl_comm_open(struct fcl_node *node, const struct fcl_comm_settings *settings,
		  struct fcl_comm **opened)
{
	int result = check_settings(settings);
	struct fcl_comm *comm;

	if (result < 0)
		return result;
	comm = calloc(1, sizeof *comm);
	if (comm == NULL)
		return fcl_fail(ENOMEM, "no memory for a communicator");
	comm->node = node;
	comm->settings = *settings;
	fcl_geometry_set(&comm->geometry, settings->buffer_bytes);
	result = fcl_node_call(node, open_on_node, comm);
	if (result < 0) {
		free(comm);
		return result;
	}
	*opened = comm;
	return 0;
}

static int close_on_node(void *argument)
{
	struct fcl_comm *comm = argument;
	struct fcl_comm **link = &comm->node->comms;

	fcl_comm_fail(comm, -ECANCELED, "the communicator was closed");
	while (*link != comm)
		link = fcl_comm_next(*link);
	*link = comm->next;
	release(comm);
	return 0;
}

void fcl_comm_close(struct fcl_comm *comm)
{
	uint64_t deadline = fcl_now_ms() + DRAIN_LIMIT_MS;
	int waited = 0;

	pthread_mutex_lock(&comm->node->lock);
	comm->draining = 1;
	fcl_node_wake(comm->node);
	while (!comm->drained && waited == 0)
		waited = fcl_node_wait_changed(comm->node, deadline);
	pthread_mutex_unlock(&comm->node->lock);
	fcl_node_call(comm->node, close_on_node, comm);
	for (struct fcl_job *job = comm->unwaited, *next; job != NULL; job = next) {
		next = job->known;
		free(job);
	}
	free(comm);
}
