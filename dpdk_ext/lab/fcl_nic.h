/* A kernel interface as a port: whole frames in and out through AF_PACKET. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fcl_net.h"

struct fcl_nic;

struct fcl_address {
	uint8_t mac[6], ip[4];
};

/* Several processes of a host may have one port: each takes a block of QP numbers, its highest bits, which
 * no other process there has, and gets the frames to those alone. */
enum { FCL_BLOCK_BITS = 5, FCL_BLOCK_SHIFT = 24 - FCL_BLOCK_BITS };

int fcl_nic_open(const char *interface, uint32_t pmtu_bytes, struct fcl_nic **nic);
void fcl_nic_close(struct fcl_nic *nic);
const struct fcl_address *fcl_nic_address(const struct fcl_nic *nic);
uint32_t fcl_nic_block(const struct fcl_nic *nic);
/* For poll(): becomes readable when a frame came. */
int fcl_nic_descriptor(const struct fcl_nic *nic);

/* Room for one frame of FCL_FRAME_MAX bytes; NULL while the batch is full and the kernel takes no
 * more. fcl_nic_commit queues what was written there, fcl_nic_flush hands the batch over. */
uint8_t *fcl_nic_room(struct fcl_nic *nic);
void fcl_nic_commit(struct fcl_nic *nic, size_t bytes);
int fcl_nic_flush(struct fcl_nic *nic);
/* Frames committed that the kernel did not take yet. */
bool fcl_nic_backlog(const struct fcl_nic *nic);

/* Up to a batch of received frames, one after another; returns how many there are. They stay until
 * the next call. */
int fcl_nic_receive(struct fcl_nic *nic);
const uint8_t *fcl_nic_frame(const struct fcl_nic *nic, int number, size_t *bytes);
