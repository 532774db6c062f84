#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fcl_error.h"
#include "fcl_kernel.h"
#include "fcl_node.h"

enum { IDLE_LIMIT_MS = 1000, WAKES_READ = 4096 };

#define FIRST_VA 0x7f0000000000ULL
#define VA_GRAIN (2ULL << 20)

uint64_t fcl_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t fcl_node_take_va(struct fcl_node *node, uint64_t bytes)
{
	uint64_t va = node->next_va;

	/* One grain stays free between blocks, so that a write past one hits nothing. */
	node->next_va += (bytes + VA_GRAIN - 1) / VA_GRAIN * VA_GRAIN + VA_GRAIN;
	return va;
}

void fcl_node_wake(struct fcl_node *node)
{
	const char one = 1;
	ssize_t written = write(node->wake[1], &one, 1);

	(void)written; /* the pipe can only be full of wake-ups that were not read yet */
}

int fcl_node_wait_changed(struct fcl_node *node, uint64_t deadline_ms)
{
	struct timespec until = { .tv_sec = (time_t)(deadline_ms / 1000),
				  .tv_nsec = (long)(deadline_ms % 1000) * 1000000 };

	return -pthread_cond_timedwait(&node->changed, &node->lock, &until);
}

int fcl_node_call(struct fcl_node *node, int (*function)(void *argument), void *argument)
{
	struct fcl_call call = { .function = function, .argument = argument }, **last;

	pthread_mutex_lock(&node->lock);
	for (last = &node->calls; *last != NULL;)
		last = &(*last)->next;
	*last = &call;
	fcl_node_wake(node);
	while (!call.done)
		pthread_cond_wait(&node->changed, &node->lock);
	pthread_mutex_unlock(&node->lock);
	return call.result < 0 ? fcl_fail(-call.result, "%s", call.sentence) : call.result;
}

/* Makes the calls that wait; returns how many, or -1 when the node is to end. */
static int serve_calls(struct fcl_node *node)
{
	char wakes[WAKES_READ];
	ssize_t got = read(node->wake[0], wakes, sizeof wakes);
	struct fcl_call *call;
	int made = 0, stopping;

	(void)got; /* nothing to read is the usual case */
	pthread_mutex_lock(&node->lock);
	while ((call = node->calls) != NULL) {
		node->calls = call->next;
		pthread_mutex_unlock(&node->lock);
		call->result = call->function(call->argument);
		if (call->result < 0)
			snprintf(call->sentence, sizeof call->sentence, "%s", fcl_error());
		made++;
		pthread_mutex_lock(&node->lock);
		call->done = 1;
		pthread_cond_broadcast(&node->changed);
	}
	stopping = node->stopping;
	pthread_mutex_unlock(&node->lock);
	return stopping ? -1 : made;
}

static void die(struct fcl_node *node, int error)
{
	node->dead = error;
	snprintf(node->sentence, sizeof node->sentence, "%s", fcl_error());
}

static void *run(void *argument)
{
	struct fcl_node *node = argument;
	int work;

	while ((work = serve_calls(node)) >= 0) {
		int moved = node->dead ? 0 : fcl_net_progress(node->net);

		if (moved < 0)
			die(node, moved);
		else
			work += moved;
		for (struct fcl_comm *comm = node->comms; comm != NULL;
		     comm = *fcl_comm_next(comm)) {
			if (node->dead)
				fcl_comm_fail(comm, node->dead, node->sentence);
			work += fcl_comm_progress(comm);
		}
		if (work > 0)
			continue;
		if (node->dead) {
			struct pollfd wake = { .fd = node->wake[0], .events = POLLIN };

			poll(&wake, 1, IDLE_LIMIT_MS);
		} else if ((moved = fcl_net_wait(node->net, node->wake[0], IDLE_LIMIT_MS)) < 0) {
			die(node, moved);
		}
	}
	return NULL;
}

static void close_pipe(struct fcl_node *node)
{
	close(node->wake[0]);
	close(node->wake[1]);
}

static int start(struct fcl_node *node)
{
	pthread_condattr_t clock;
	int error;

	if (pipe2(node->wake, O_NONBLOCK | O_CLOEXEC) != 0)
		return fcl_fail(errno, "no pipe for the node: %s", strerror(errno));
	pthread_mutex_init(&node->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&node->changed, &clock);
	pthread_condattr_destroy(&clock);
	error = pthread_create(&node->thread, NULL, run, node);
	if (error != 0) {
		close_pipe(node);
		return fcl_fail(error, "no thread for the node: %s", strerror(error));
	}
	return 0;
}

int fcl_node_open(const struct fcl_net_settings *settings, struct fcl_node **opened)
{
	struct fcl_node *node = calloc(1, sizeof *node);
	int result;

	if (node == NULL)
		return fcl_fail(ENOMEM, "no memory for a node");
	node->version = settings->nccl_version;
	node->next_va = FIRST_VA;
	node->lending.memory = -1;
	node->scratch = malloc(FCL_SCRATCH_BYTES);
	result = node->scratch != NULL ? fcl_net_open(settings, &node->net)
				       : fcl_fail(ENOMEM, "no memory for a node");
	if (result == 0) {
		result = start(node);
		if (result < 0)
			fcl_net_close(node->net);
	}
	if (result < 0) {
		free(node->scratch);
		free(node);
		return result;
	}
	*opened = node;
	return 0;
}

void fcl_node_close(struct fcl_node *node)
{
	pthread_mutex_lock(&node->lock);
	node->stopping = 1;
	pthread_mutex_unlock(&node->lock);
	fcl_node_wake(node);
	pthread_join(node->thread, NULL);
	fcl_net_close(node->net);
	fcl_lending_close(&node->lending);
	close_pipe(node);
	pthread_cond_destroy(&node->changed);
	pthread_mutex_destroy(&node->lock);
	free(node->scratch);
	free(node);
}

struct reading {
	struct fcl_node *node;
	struct fcl_net_counters *out;
};

static int read_counters(void *argument)
{
	struct reading *reading = argument;

	fcl_net_read(reading->node->net, reading->out);
	return 0;
}

void fcl_node_read(struct fcl_node *node, struct fcl_net_counters *out)
{
	struct reading reading = { node, out };

	fcl_node_call(node, read_counters, &reading);
}
