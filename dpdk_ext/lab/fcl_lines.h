/* How the three protocols lay data into a slot, as the kernel writes it before the proxy sends it. */
#pragma once

#include <stdint.h>

/* Bytes on the wire of `bytes` of data. */
uint64_t fcl_wire_bytes(uint32_t protocol, uint64_t bytes);

/* Writes the lines of message `step` (LL, LL128); places past the data are filled with a pattern that
 * is no data: a GPU leaves there what its registers held. */
void fcl_pack(uint32_t protocol, void *slot, const void *data, uint64_t bytes, uint64_t step);

/* 1 when every line of the message carries the flag of `step`: what the proxy waits for. */
int fcl_lines_proven(uint32_t protocol, const void *slot, uint64_t wire_bytes, uint64_t step);

/* Reads `bytes` of data out of lines. */
void fcl_unpack(uint32_t protocol, void *data, const void *slot, uint64_t bytes);
