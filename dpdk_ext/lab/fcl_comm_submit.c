#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fcl_comm_state.h"
#include "fcl_error.h"

struct connecting {
	struct fcl_comm *comm;
	uint32_t peer;
	const uint8_t *senders, *receivers;
	uint8_t *handles;
};

static int peer_handles_on_node(void *argument)
{
	struct connecting *connecting = argument;
	struct fcl_peer *peer = fcl_peer_find(connecting->comm, connecting->peer);
	uint32_t half = fcl_comm_handles_bytes(connecting->comm);

	if (peer == NULL) {
		int result = fcl_peer_open(connecting->comm, connecting->peer, &peer);

		if (result < 0)
			return result;
	}
	memcpy(connecting->handles, peer->ends.out_handles, half);
	memcpy(connecting->handles + half, peer->ends.in_handles, half);
	return 0;
}

static int check_peer(const struct fcl_comm *comm, uint32_t peer)
{
	if (peer >= comm->settings.ranks || peer == comm->settings.rank)
		return fcl_fail(EINVAL, "rank %u is no peer of rank %u among %u", peer,
				comm->settings.rank, comm->settings.ranks);
	return 0;
}

int fcl_comm_peer_handles(struct fcl_comm *comm, uint32_t peer, uint8_t *handles)
{
	struct connecting connecting = { .comm = comm, .peer = peer, .handles = handles };
	int result = check_peer(comm, peer);

	return result < 0 ? result : fcl_node_call(comm->node, peer_handles_on_node, &connecting);
}

static int peer_connect_on_node(void *argument)
{
	struct connecting *connecting = argument;
	struct fcl_comm *comm = connecting->comm;
	struct fcl_peer *peer = fcl_peer_find(comm, connecting->peer);
	int result = 0;

	if (peer == NULL || peer->connected)
		return fcl_fail(EINVAL, "rank %u has no open half of a connection",
				connecting->peer);
	for (uint32_t channel = 0; result == 0 && channel < comm->settings.channels; channel++) {
		uint32_t at = channel * FCL_HANDLE_BYTES;

		result =
			fcl_out_connect(comm, &peer->ends.out[channel], connecting->receivers + at);
		if (result == 0)
			result = fcl_in_connect(comm, &peer->ends.in[channel],
						connecting->senders + at);
	}
	peer->connected = result == 0;
	return result;
}

int fcl_comm_peer_connect(struct fcl_comm *comm, uint32_t peer, const uint8_t *handles)
{
	struct connecting connecting = { .comm = comm,
					 .peer = peer,
					 .senders = handles,
					 .receivers = handles + fcl_comm_handles_bytes(comm) };

	return fcl_node_call(comm->node, peer_connect_on_node, &connecting);
}

static int is_connected(void *argument)
{
	struct connecting *connecting = argument;
	struct fcl_peer *peer = fcl_peer_find(connecting->comm, connecting->peer);

	return peer != NULL && peer->connected;
}

static int check_operation(struct fcl_comm *comm, const struct fcl_operation *operation)
{
	struct connecting connecting = { .comm = comm, .peer = operation->peer };
	uint32_t element = fcl_type_bytes(operation->type);
	int to_peer = operation->kind == FCL_SEND || operation->kind == FCL_RECV;

	if (operation->kind > FCL_ALL_GATHER_V || element == 0 || operation->reduction > FCL_PROD)
		return fcl_fail(EINVAL, "kind %u of type %u with reduction %u is no operation",
				operation->kind, operation->type, operation->reduction);
	if (operation->count > (UINT64_C(1) << 48) / element)
		return fcl_fail(EINVAL, "%" PRIu64 " elements are too many", operation->count);
	if (operation->kind == FCL_BROADCAST && operation->peer >= comm->settings.ranks)
		return fcl_fail(EINVAL, "root %u is none of %u ranks", operation->peer,
				comm->settings.ranks);
	if (!to_peer)
		return 0;
	if (check_peer(comm, operation->peer) < 0)
		return -EINVAL;
	if (fcl_node_call(comm->node, is_connected, &connecting) == 0)
		return fcl_fail(ENOTCONN, "there is no connection to rank %u yet", operation->peer);
	return 0;
}

int fcl_submit(struct fcl_comm *comm, const struct fcl_operation *operation, uint64_t *ticket)
{
	int result = check_operation(comm, operation);
	struct fcl_job *job, **last;

	if (result < 0)
		return result;
	job = calloc(1, sizeof *job);
	if (job == NULL)
		return fcl_fail(ENOMEM, "no memory for an operation");
	job->operation = *operation;
	pthread_mutex_lock(&comm->node->lock);
	if (comm->refused) {
		result = fcl_fail(-comm->refused, "%s", comm->sentence);
		pthread_mutex_unlock(&comm->node->lock);
		free(job);
		return result;
	}
	*ticket = job->ticket = ++comm->tickets;
	for (last = &comm->submitted; *last != NULL;)
		last = &(*last)->next;
	*last = job;
	job->known = comm->unwaited;
	comm->unwaited = job;
	fcl_node_wake(comm->node);
	pthread_mutex_unlock(&comm->node->lock);
	return 0;
}

struct ending {
	struct fcl_comm *comm;
	int error;
	const char *sentence;
};

static int abort_on_node(void *argument)
{
	struct ending *ending = argument;

	fcl_comm_fail(ending->comm, ending->error, ending->sentence);
	return 0;
}

void fcl_comm_abort(struct fcl_comm *comm, const char *sentence)
{
	struct ending ending = { comm, -ECANCELED, sentence };

	fcl_node_call(comm->node, abort_on_node, &ending);
}

/* The job with `ticket`, or NULL; `*link` is where it hangs. Under the lock. */
static struct fcl_job *find(struct fcl_comm *comm, uint64_t ticket, struct fcl_job ***link)
{
	struct fcl_job **at = &comm->unwaited;

	while (*at != NULL && (*at)->ticket != ticket)
		at = &(*at)->known;
	*link = at;
	return *at;
}

int fcl_wait(struct fcl_comm *comm, uint64_t ticket, int timeout_ms, struct fcl_outcome *outcome)
{
	uint64_t deadline = fcl_now_ms() + (uint64_t)timeout_ms;
	struct fcl_job *job, **link;
	int result = 0;

	pthread_mutex_lock(&comm->node->lock);
	job = find(comm, ticket, &link);
	if (job == NULL) {
		pthread_mutex_unlock(&comm->node->lock);
		return fcl_fail(ENOENT, "operation %" PRIu64 " is unknown or was waited for",
				ticket);
	}
	while (!job->done && result == 0)
		result = fcl_node_wait_changed(comm->node, deadline);
	if (!job->done) {
		struct ending ending = { comm, -ETIMEDOUT,
					 "an operation took longer than its time-out: "
					 "a peer is gone, or runs another operation" };

		/* The tensors of what is under way must not be touched any more when we return. */
		pthread_mutex_unlock(&comm->node->lock);
		fcl_node_call(comm->node, abort_on_node, &ending);
		pthread_mutex_lock(&comm->node->lock);
	}
	find(comm, ticket, &link);
	*link = job->known;
	pthread_mutex_unlock(&comm->node->lock);
	*outcome = job->outcome;
	result = job->error < 0 ? fcl_fail(-job->error, "%s", job->sentence) : 0;
	free(job);
	return result;
}
