/* runSend and runRecv of the device code (src/device/sendrecv.h): a channel's part as messages of one
 * step each; a part of nothing is one empty message. */
#include "fcl_kernel.h"

static int64_t piece(const struct fcl_kernel *kernel, uint64_t at)
{
	uint64_t left = kernel->bytes - at;

	return (int64_t)(left < kernel->message_bytes ? left : kernel->message_bytes);
}

void fcl_kernel_send(struct fcl_kernel *kernel)
{
	uint64_t at = 0;

	do {
		fcl_prim_send(kernel, at, piece(kernel, at));
		at += kernel->message_bytes;
	} while (at < kernel->bytes);
}

void fcl_kernel_recv(struct fcl_kernel *kernel)
{
	uint64_t at = 0;

	do {
		fcl_prim_recv(kernel, at, piece(kernel, at));
		at += kernel->message_bytes;
	} while (at < kernel->bytes);
}
