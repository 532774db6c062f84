#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fcl_comm_state.h"
#include "fcl_error.h"
#include "fcl_nvls.h"

enum {
	PEER_PART_BYTES = 128 << 10, /* send and recv take more channels while a part is larger */
	PEER_PART_GRAIN = 4096,
	PEER_LARGE_BYTES = 1 << 20,    /* below: half messages */
	PEER_MIDDLE_BYTES = 128 << 10, /* below: quarter messages */
};

/* Of a channel: what goes up a tree and what comes down are kernels of their own, and inside a host what goes to
 * an NVLS tree's heads and what comes from them. */
enum { MAIN_KERNEL, DOWN_KERNEL, OFFERS_KERNEL, RESULTS_KERNEL, KERNELS };

static uint32_t kernels(const struct fcl_comm *comm)
{
	return KERNELS * comm->settings.channels;
}

int fcl_lane_open(struct fcl_comm *comm, struct fcl_lane *lane)
{
	lane->kernels = calloc(kernels(comm), sizeof *lane->kernels);
	return lane->kernels != NULL ? 0 : fcl_fail(ENOMEM, "no memory for kernels");
}

void fcl_lane_close(struct fcl_comm *comm, struct fcl_lane *lane)
{
	for (uint32_t i = 0; lane->kernels != NULL && i < kernels(comm); i++)
		fcl_kernel_close(&lane->kernels[i]);
	free(lane->kernels);
	lane->kernels = NULL;
}

void fcl_job_finish(struct fcl_comm *comm, struct fcl_job *job, int error, const char *sentence)
{
	pthread_mutex_lock(&comm->node->lock);
	job->error = error;
	snprintf(job->sentence, sizeof job->sentence, "%s", sentence);
	job->done = 1;
	pthread_cond_broadcast(&comm->node->changed);
	pthread_mutex_unlock(&comm->node->lock);
}

static int is_moved(uint32_t kind)
{
	return kind != FCL_ALL_REDUCE && kind != FCL_REDUCE_SCATTER;
}

/* Kernel `nth` of the lane, with what all operations share; NULL and the sentence set. */
static struct fcl_kernel *kernel_for(struct fcl_comm *comm, struct fcl_lane *lane, uint32_t nth)
{
	const struct fcl_operation *operation = &lane->first->operation;
	struct fcl_kernel *kernel = &lane->kernels[nth];

	if (kernel->stack == NULL && fcl_kernel_open(kernel) < 0)
		return NULL;
	kernel->channel = nth % comm->settings.channels;
	kernel->rank = comm->settings.rank;
	kernel->ranks = comm->settings.ranks;
	kernel->order = fcl_order(&comm->places, kernel->channel);
	kernel->index = comm->places.indices[kernel->channel];
	kernel->root = operation->peer;
	kernel->scratch = comm->node->scratch;
	kernel->input = operation->input;
	kernel->output = operation->output;
	kernel->slices = 1;
	/* What is only moved is moved as bytes. */
	kernel->arithmetic = (struct fcl_arithmetic){ FCL_UINT8, FCL_SUM, comm->settings.ranks };
	if (!is_moved(operation->kind)) {
		kernel->arithmetic.type = operation->type;
		kernel->arithmetic.reduction = operation->reduction;
	}
	kernel->element_bytes = fcl_type_bytes(kernel->arithmetic.type);
	return kernel;
}

/* Nothing to move, or nobody to move it to: no message, as NCCL. */
static int is_alone(const struct fcl_comm *comm, const struct fcl_operation *operation)
{
	int to_peer = operation->kind == FCL_SEND || operation->kind == FCL_RECV;

	return !to_peer && (operation->count == 0 || comm->settings.ranks == 1);
}

/* The larger of all a rank sends or receives. */
static uint64_t bytes_of(const struct fcl_comm *comm, const struct fcl_operation *operation)
{
	int by_rank = operation->kind == FCL_ALL_GATHER || operation->kind == FCL_ALL_GATHER_V ||
		      operation->kind == FCL_REDUCE_SCATTER;

	return operation->count * fcl_type_bytes(operation->type) *
	       (by_rank ? comm->settings.ranks : 1);
}

int fcl_comm_uses(const struct fcl_comm *comm, uint32_t algorithm)
{
	uint32_t protocol = comm->settings.protocol;

	if (algorithm == FCL_TREE)
		return (comm->places.flat || comm->places.chains != NULL) &&
		       comm->settings.tree_below > 0;
	if (algorithm == FCL_NVLS_TREE)
		return comm->places.heads > 0 && comm->places.host_count > 1 &&
		       comm->places.local_count > 1 &&
		       (protocol == FCL_SIMPLE || protocol == FCL_ANY_PROTOCOL);
	return algorithm == FCL_RING;
}

int fcl_comm_algorithm(const struct fcl_comm *comm, const struct fcl_operation *operation)
{
	if (is_alone(comm, operation))
		return -1;
	if (operation->kind != FCL_ALL_REDUCE)
		return FCL_RING;
	if (fcl_comm_uses(comm, FCL_NVLS_TREE) &&
	    fcl_nvls_supports(operation->type, operation->reduction) &&
	    bytes_of(comm, operation) >= comm->settings.nvls_from)
		return FCL_NVLS_TREE;
	if (fcl_comm_uses(comm, FCL_TREE) && operation->reduction != FCL_AVG &&
	    bytes_of(comm, operation) < comm->settings.tree_below)
		return FCL_TREE;
	return FCL_RING;
}

static void plan_for(const struct fcl_comm *comm, const struct fcl_operation *operation,
		     struct fcl_plan *plan)
{
	uint32_t element = fcl_type_bytes(operation->type);
	uint32_t protocol = comm->settings.protocol;
	int algorithm = fcl_comm_algorithm(comm, operation);
	struct fcl_request request = {
		.version = comm->node->version,
		.ranks = comm->settings.ranks,
		.channels = comm->settings.channels,
		.kind = operation->kind,
		.element_bytes = is_moved(operation->kind) ? 1 : element,
		.count = is_moved(operation->kind) ? operation->count * element : operation->count,
		.protocol = protocol == FCL_ANY_PROTOCOL
				    ? fcl_protocol_for(bytes_of(comm, operation))
				    : protocol,
		.tree = algorithm == FCL_TREE,
		.hosts = comm->places.host_count,
	};

	if (algorithm == FCL_NVLS_TREE) {
		request.protocol = FCL_SIMPLE;
		request.heads = comm->places.heads;
	}
	fcl_plan_make(plan, &request, &comm->geometry);
}

/* Starts another kernel of the channel, with the plan and the ends of the first one. */
static int further(struct fcl_comm *comm, struct fcl_lane *lane, const struct fcl_kernel *first,
		   uint32_t which, void (*body)(struct fcl_kernel *kernel))
{
	struct fcl_kernel *kernel =
		kernel_for(comm, lane, which * comm->settings.channels + first->channel);
	struct fcl_kernel copy;

	if (kernel == NULL)
		return -ENOMEM;
	copy = *first;
	copy.stack = kernel->stack;
	copy.body = body;
	*kernel = copy;
	fcl_kernel_start(kernel);
	return 0;
}

/* The kernels of a channel that goes by a tree. */
static int start_tree(struct fcl_comm *comm, struct fcl_lane *lane, struct fcl_kernel *kernel,
		      const struct fcl_slots *slots, uint64_t turns)
{
	int running = fcl_tree_begin(comm, kernel, slots, turns);

	if (running < 0)
		return running;
	if (running > 1 && further(comm, lane, kernel, DOWN_KERNEL, fcl_kernel_tree_down) < 0)
		return -ENOMEM;
	fcl_kernel_start(kernel);
	return 0;
}

static int start_nvls(struct fcl_comm *comm, struct fcl_lane *lane, struct fcl_kernel *kernel,
		      const struct fcl_slots *slots, uint64_t turns)
{
	int result = fcl_nvls_begin(comm, kernel, slots, turns);

	if (result < 0)
		return result;
	if (further(comm, lane, kernel, OFFERS_KERNEL, fcl_kernel_nvls_offers) < 0 ||
	    further(comm, lane, kernel, RESULTS_KERNEL, fcl_kernel_nvls_results) < 0)
		return -ENOMEM;
	if (kernel->head == kernel->heads)
		return 0;
	kernel->body =
		kernel->tree.parent == FCL_TREE_NOBODY ? fcl_kernel_nvls_root : fcl_kernel_nvls_up;
	fcl_kernel_start(kernel);
	if (kernel->tree.parent == FCL_TREE_NOBODY)
		return 0;
	return further(comm, lane, kernel, DOWN_KERNEL, fcl_kernel_nvls_down);
}

static int start_ring(struct fcl_comm *comm, struct fcl_kernel *kernel,
		      const struct fcl_slots *slots, uint64_t messages)
{
	const struct fcl_plan *plan = kernel->plan;
	uint32_t channel = kernel->channel, last = comm->settings.ranks - 1;

	kernel->from =
		fcl_link_in(comm, fcl_after(&comm->places, channel, last), FCL_FLOWS, channel);
	kernel->to = fcl_link_out(comm, fcl_after(&comm->places, channel, 1), FCL_FLOWS, channel);
	if (kernel->from == NULL || kernel->to == NULL)
		return -ENOTCONN;
	fcl_out_begin(kernel->to, slots, kernel->protocol, plan->chunk_steps, plan->slice_steps);
	fcl_in_begin(kernel->from, slots, kernel->protocol, plan->chunk_steps, plan->slice_steps,
		     messages);
	fcl_kernel_start(kernel);
	return 0;
}

static int start_collective(struct fcl_comm *comm, struct fcl_lane *lane)
{
	static void (*const bodies[])(struct fcl_kernel *) = {
		[FCL_ALL_REDUCE] = fcl_kernel_all_reduce,
		[FCL_BROADCAST] = fcl_kernel_broadcast,
		[FCL_ALL_GATHER] = fcl_kernel_all_gather,
		[FCL_ALL_GATHER_V] = fcl_kernel_all_gather,
		[FCL_REDUCE_SCATTER] = fcl_kernel_reduce_scatter,
	};
	struct fcl_job *job = lane->first;
	uint32_t kind = job->operation.kind;
	struct fcl_plan *plan = &lane->plan;
	uint32_t receives = fcl_kernel_receives(kind, comm->settings.rank, comm->settings.ranks,
						job->operation.peer);
	struct fcl_slots slots;
	int result;

	plan_for(comm, &job->operation, plan);
	job->outcome.algorithm = (uint32_t)fcl_comm_algorithm(comm, &job->operation);
	job->outcome.protocol = plan->request.protocol;
	fcl_slots_ring(&slots, &comm->geometry, plan->request.protocol, plan->slice_steps);
	for (uint32_t channel = 0; channel < plan->used; channel++) {
		uint64_t turns = fcl_loop_count(plan, channel);
		struct fcl_kernel *kernel;

		if (turns == 0)
			continue;
		kernel = kernel_for(comm, lane, channel);
		if (kernel == NULL)
			return -ENOMEM;
		kernel->body = bodies[kind];
		kernel->plan = plan;
		kernel->protocol = plan->request.protocol;
		kernel->slices = plan->chunk_steps / plan->slice_steps;
		job->outcome.channels++;
		if (plan->request.heads > 0)
			result = start_nvls(comm, lane, kernel, &slots, turns);
		else if (plan->request.tree)
			result = start_tree(comm, lane, kernel, &slots, turns);
		else
			result =
				start_ring(comm, kernel, &slots, turns * receives * kernel->slices);
		if (result < 0)
			return result;
	}
	return 0;
}

static int start_peer(struct fcl_comm *comm, struct fcl_lane *lane)
{
	struct fcl_job *job = lane->first;
	struct fcl_peer *peer = fcl_peer_find(comm, job->operation.peer);
	uint64_t bytes = job->operation.count * fcl_type_bytes(job->operation.type), part = bytes;
	uint64_t message = FCL_PEER_CHUNK_BYTES;
	int sends = job->operation.kind == FCL_SEND;
	int local = fcl_is_local(&comm->places, job->operation.peer);
	uint32_t channels = 1;

	while (channels * 2 <= comm->settings.channels && part > PEER_PART_BYTES) {
		channels *= 2;
		part = (bytes + channels - 1) / channels;
	}
	if (channels > 1)
		part = (part + PEER_PART_GRAIN - 1) / PEER_PART_GRAIN * PEER_PART_GRAIN;
	if (bytes < PEER_LARGE_BYTES)
		message /= 2;
	if (bytes < PEER_MIDDLE_BYTES)
		message /= 2;
	job->outcome.protocol = FCL_SIMPLE;
	for (uint32_t channel = 0; channel == 0 || (channel < channels && channel * part < bytes);
	     channel++) {
		uint64_t left = bytes - channel * part;
		struct fcl_kernel *kernel = kernel_for(comm, lane, channel);
		struct fcl_slots slots;

		if (kernel == NULL)
			return -ENOMEM;
		kernel->body = sends ? fcl_kernel_send : fcl_kernel_recv;
		kernel->protocol = FCL_SIMPLE;
		kernel->bytes = left < part ? left : part;
		kernel->message_bytes = message;
		kernel->input = sends ? kernel->input + channel * part : NULL;
		kernel->output = sends ? NULL : kernel->output + channel * part;
		kernel->from = &peer->ends.in[channel];
		kernel->to = &peer->ends.out[channel];
		if (sends) {
			fcl_slots_peer(&slots, 0, !local);
			fcl_out_begin(kernel->to, &slots, FCL_SIMPLE, 1, 1);
		} else {
			uint64_t messages = (kernel->bytes + message - 1) / message;

			fcl_slots_peer(&slots, local ? 0 : channel, !local);
			fcl_in_begin(kernel->from, &slots, FCL_SIMPLE, 1, 1,
				     messages > 0 ? messages : 1);
		}
		fcl_kernel_start(kernel);
		job->outcome.channels++;
	}
	return 0;
}

static int start(struct fcl_comm *comm, struct fcl_lane *lane)
{
	const struct fcl_operation *operation = &lane->first->operation;

	if (is_alone(comm, operation)) {
		if (operation->count > 0 && operation->input != operation->output)
			memcpy(operation->output, operation->input,
			       operation->count * fcl_type_bytes(operation->type));
		return 0;
	}
	if (operation->kind == FCL_SEND || operation->kind == FCL_RECV)
		return start_peer(comm, lane);
	return start_collective(comm, lane);
}

int fcl_lane_progress(struct fcl_comm *comm, struct fcl_lane *lane)
{
	struct fcl_job *job = lane->first;
	int work = 0, running = 0;

	if (job == NULL)
		return 0;
	if (!lane->started) {
		int result = start(comm, lane);

		if (result < 0)
			return result;
		lane->started = 1;
		work++;
	}
	for (uint32_t i = 0; i < kernels(comm); i++) {
		struct fcl_kernel *kernel = &lane->kernels[i];
		int result;

		if (!kernel->running)
			continue;
		result = fcl_kernel_progress(kernel);
		if (result < 0)
			return result;
		work += result;
		running += kernel->running;
		if (!kernel->running)
			job->outcome.messages += kernel->messages;
	}
	if (running == 0) {
		lane->first = job->next;
		lane->started = 0;
		fcl_job_finish(comm, job, 0, "");
		work++;
	}
	return work;
}
