#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "fcl_error.h"
#include "fcl_kernel.h"
#include "fcl_lines.h"

enum { STACK_BYTES = 256 << 10, GUARD_BYTES = 64 << 10 };

/* makecontext passes ints only. */
static _Thread_local struct fcl_kernel *starting;

static void entry(void)
{
	struct fcl_kernel *kernel = starting;

	kernel->body(kernel);
	kernel->running = 0;
	swapcontext(&kernel->context, &kernel->scheduler);
}

int fcl_kernel_open(struct fcl_kernel *kernel)
{
	void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);

	if (stack == MAP_FAILED)
		return fcl_fail(errno, "no memory for a kernel's stack: %s", strerror(errno));
	if (mprotect(stack, GUARD_BYTES, PROT_NONE) != 0) {
		int error = errno;

		munmap(stack, STACK_BYTES);
		return fcl_fail(error, "a kernel's stack has no guard page: %s", strerror(error));
	}
	kernel->stack = stack;
	return 0;
}

void fcl_kernel_close(struct fcl_kernel *kernel)
{
	if (kernel->stack != NULL)
		munmap(kernel->stack, STACK_BYTES);
	kernel->stack = NULL;
}

void fcl_kernel_start(struct fcl_kernel *kernel)
{
	kernel->running = 1;
	kernel->waits_for_message = kernel->waits_for_slot = kernel->failed = 0;
	kernel->messages = 0;
	getcontext(&kernel->context);
	kernel->context.uc_stack.ss_sp = kernel->stack;
	kernel->context.uc_stack.ss_size = STACK_BYTES;
	kernel->context.uc_link = NULL;
	makecontext(&kernel->context, entry, 0);
}

static int ready(const struct fcl_kernel *kernel)
{
	return (!kernel->waits_for_message || fcl_in_message(kernel->from) != NULL) &&
	       (!kernel->waits_for_slot || fcl_out_slot(kernel->to) != NULL);
}

int fcl_kernel_progress(struct fcl_kernel *kernel)
{
	if (!kernel->running || kernel->failed || !ready(kernel))
		return 0;
	starting = kernel;
	swapcontext(&kernel->scheduler, &kernel->context);
	return kernel->failed ? kernel->failed : 1;
}

/* waitPeer of the device code: data to read, credit to write. */
static void wait_for(struct fcl_kernel *kernel, int message, int slot)
{
	kernel->waits_for_message = message;
	kernel->waits_for_slot = slot;
	while (!ready(kernel))
		swapcontext(&kernel->context, &kernel->scheduler);
}

/* A kernel that failed is never resumed; its operation ends with the error. */
static void fail(struct fcl_kernel *kernel, int error)
{
	kernel->failed = error;
	for (;;)
		swapcontext(&kernel->context, &kernel->scheduler);
}

enum { RECEIVE = 1, SEND = 2, LAST = 4 };

/* The data of the message that is due: in place, or unpacked into the scratch. */
static const uint8_t *incoming(struct fcl_kernel *kernel, uint64_t bytes, uint64_t wire)
{
	const struct fcl_message *message = fcl_in_message(kernel->from);

	if (message->bytes != wire)
		fail(kernel, fcl_fail(EPROTO,
				      "step %" PRIu64 " brought %u bytes where %" PRIu64
				      " were due: the peer runs another operation",
				      message->step, message->bytes, wire));
	if (!fcl_lines_proven(kernel->protocol, message->data, wire, message->step))
		fail(kernel, fcl_fail(EPROTO, "lines of step %" PRIu64 " carry other flags",
				      message->step));
	if (kernel->protocol == FCL_SIMPLE)
		return message->data;
	fcl_unpack(kernel->protocol, kernel->scratch, message->data, bytes);
	return kernel->scratch;
}

/* One message in, one out, or both. `own`, `out` may be NULL; `bytes` of data. */
static void slice(struct fcl_kernel *kernel, int what, const uint8_t *own, uint8_t *out,
		  uint64_t bytes)
{
	uint64_t count = bytes / kernel->element_bytes;
	uint64_t wire = fcl_wire_bytes(kernel->protocol, bytes);
	int lines = kernel->protocol != FCL_SIMPLE;
	const uint8_t *received = NULL;
	uint8_t *data = out, *slot = NULL;

	wait_for(kernel, what & RECEIVE, what & SEND);
	if (what & SEND) {
		slot = data = fcl_out_slot(kernel->to);
		if (wire > kernel->to->slots.capacity)
			fail(kernel,
			     fcl_fail(EMSGSIZE, "%" PRIu64 " bytes do not fit a slot", wire));
	}
	if (lines)
		data = kernel->scratch;
	if (what & RECEIVE)
		received = incoming(kernel, bytes, wire);
	if (received != NULL && own != NULL)
		fcl_reduce(&kernel->arithmetic, data, received, own, count, what & LAST);
	else if (own != NULL)
		fcl_contribute(&kernel->arithmetic, data, own, count);
	else if (received != NULL && received != data && bytes > 0)
		memcpy(data, received, bytes);
	if (what & SEND) {
		if (lines)
			fcl_pack(kernel->protocol, slot, data, bytes, kernel->to->step);
		fcl_out_fill(kernel->to, (uint32_t)wire);
		kernel->messages++;
	}
	if (out != NULL && out != data && bytes > 0)
		memcpy(out, data, bytes);
	if (what & RECEIVE)
		fcl_in_take(kernel->from);
}

/* genericOp: a chunk is one message, or two slices where the operation uses them. */
static void move(struct fcl_kernel *kernel, int what, const uint8_t *own, uint8_t *out,
		 int64_t elements)
{
	uint64_t count = elements > 0 ? (uint64_t)elements : 0, size = kernel->element_bytes,
		 share = count;

	if (kernel->slices > 1) {
		uint64_t grains = (count + 16 * kernel->slices - 1) / (16 * kernel->slices) * 16;
		const struct fcl_slots *slots =
			what & SEND ? &kernel->to->slots : &kernel->from->slots;
		uint64_t floor = slots->capacity / size / 32;

		share = grains > floor ? grains : floor;
	}
	for (uint32_t part = 0; part < kernel->slices; part++) {
		uint64_t now = share < count ? share : count;

		slice(kernel, what, own, out, now * size);
		own = own == NULL ? NULL : own + now * size;
		out = out == NULL ? NULL : out + now * size;
		count -= now;
	}
}

static const uint8_t *own_at(const struct fcl_kernel *kernel, uint64_t element)
{
	return kernel->input + element * kernel->element_bytes;
}

static uint8_t *out_at(const struct fcl_kernel *kernel, uint64_t element)
{
	return kernel->output + element * kernel->element_bytes;
}

void fcl_prim_send(struct fcl_kernel *kernel, uint64_t own, int64_t count)
{
	move(kernel, SEND, own_at(kernel, own), NULL, count);
}

void fcl_prim_copy_send(struct fcl_kernel *kernel, uint64_t own, uint64_t out, int64_t count)
{
	move(kernel, SEND, own_at(kernel, own), out_at(kernel, out), count);
}

void fcl_prim_recv(struct fcl_kernel *kernel, uint64_t out, int64_t count)
{
	move(kernel, RECEIVE, NULL, out_at(kernel, out), count);
}

void fcl_prim_recv_copy_send(struct fcl_kernel *kernel, uint64_t out, int64_t count)
{
	move(kernel, RECEIVE | SEND, NULL, out_at(kernel, out), count);
}

void fcl_prim_recv_reduce_send(struct fcl_kernel *kernel, uint64_t own, int64_t count)
{
	move(kernel, RECEIVE | SEND, own_at(kernel, own), NULL, count);
}

void fcl_prim_recv_reduce_copy(struct fcl_kernel *kernel, uint64_t own, uint64_t out, int64_t count)
{
	move(kernel, RECEIVE | LAST, own_at(kernel, own), out_at(kernel, out), count);
}

void fcl_prim_recv_reduce_copy_send(struct fcl_kernel *kernel, uint64_t own, uint64_t out,
				    int64_t count)
{
	move(kernel, RECEIVE | SEND | LAST, own_at(kernel, own), out_at(kernel, out), count);
}
