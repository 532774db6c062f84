/* A frame's way into its slot. Not read by cffi. */
#ifndef FC_FRAME_COPY_H
#define FC_FRAME_COPY_H

#include "fc_common.h"
#include "fc_ring.h"

/* Copies `bytes` bytes as fc_copy_stream() does: the frame, whose length is in the slot, and maybe
 * the rest of its last cache line. with_icrc: notes in the slot if the ICRC is right, where the
 * headers are plain. Overwrites what an earlier frame left there. */
void fc_copy_frame(struct fc_slot *slot, uint8_t *to, const uint8_t *frame, size_t bytes,
		   bool with_icrc);

#endif
