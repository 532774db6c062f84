/* A wire inside the process in the place of fcl_nic.c: it loses nothing by itself, but repeats, swaps and
 * damages frames, and hands each over in memory of exactly its size. */
#include "storm_wire.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "fcl_nic.h"

enum { QUEUE = 4096 };

struct piece {
	uint8_t *bytes;
	size_t length;
};

struct fcl_nic {
	struct fcl_address address;
	uint8_t room[FCL_FRAME_MAX];
	struct piece queue[QUEUE];
	unsigned head, tail; /* of what came and was not taken */
	struct piece taken[64];
	int taken_count;
	uint32_t closed; /* for so many frames */
};

int storm_hostile;
unsigned long long storm_damaged;
struct fcl_net storm_dice;
static struct fcl_nic *nics[2];

uint32_t storm_draw(uint32_t below)
{
	return (uint32_t)(fcl_net_random(&storm_dice) % below);
}

static void put_icrc(uint8_t *frame, size_t length)
{
	uint8_t masked[8 + 20 + 8 + 5];
	memset(masked, 0xff, sizeof masked);
	memcpy(masked + 8, frame + 14, sizeof masked - 8);
	masked[8 + 1] = masked[8 + 8] = masked[8 + 10] = masked[8 + 11] = 0xff;
	masked[8 + 26] = masked[8 + 27] = masked[sizeof masked - 1] = 0xff;
	const size_t done = 14 + sizeof masked - 8;
	uLong crc = crc32(crc32(0, NULL, 0), masked, sizeof masked);
	crc = crc32(crc, frame + done, (uInt)(length - 4 - done));
	for (int i = 0; i < 4; i++)
		frame[length - 4 + (size_t)i] = (uint8_t)(crc >> 8 * i);
}

/* Some bytes or the length of a frame change; a hostile wire makes the ICRC right again. */
static size_t damage(uint8_t *frame, size_t length)
{
	storm_damaged++;
	if (storm_hostile && storm_draw(4) == 0) {
		length = 42 + 16 + storm_draw(FCL_FRAME_MAX - 42 - 16);
		frame[16] = (uint8_t)((length - 14) >> 8);
		frame[17] = (uint8_t)(length - 14);
	}
	const uint32_t changes = 1 + storm_draw(3);
	for (uint32_t i = 0; i < changes; i++) {
		/* Mostly the headers, where a changed byte means something else. */
		const uint32_t at = storm_draw(3) ? 42 + storm_draw(36)
						  : 14 + storm_draw((uint32_t)length - 14);
		if (at < length)
			frame[at] ^= (uint8_t)(1u << storm_draw(8));
	}
	if (storm_hostile)
		put_icrc(frame, length);
	else if (storm_draw(4) == 0)
		length -= storm_draw((uint32_t)length);
	return length;
}

static void deliver(struct fcl_nic *to, const uint8_t *frame, size_t length)
{
	if (to->tail - to->head == QUEUE)
		return;
	struct piece *piece = &to->queue[to->tail++ % QUEUE];
	piece->bytes = malloc(length ? length : 1);
	piece->length = length;
	memcpy(piece->bytes, frame, length);
	if (storm_draw(50) == 0 && to->tail - to->head > 1) {
		struct piece *before = &to->queue[(to->tail - 2) % QUEUE], swapped = *before;
		*before = *piece;
		*piece = swapped;
	}
}

int fcl_nic_open(const char *interface, uint32_t pmtu_bytes, struct fcl_nic **nic)
{
	const int number = interface[0] - '0';
	(void)pmtu_bytes;
	*nic = nics[number] = calloc(1, sizeof **nic);
	(*nic)->address.ip[0] = 10;
	(*nic)->address.ip[3] = (uint8_t)(number + 1);
	return 0;
}

void fcl_nic_close(struct fcl_nic *nic)
{
	while (nic->head != nic->tail)
		free(nic->queue[nic->head++ % QUEUE].bytes);
	while (nic->taken_count)
		free(nic->taken[--nic->taken_count].bytes);
	free(nic);
}

uint32_t fcl_nic_block(const struct fcl_nic *nic)
{
	return 0;
}

const struct fcl_address *fcl_nic_address(const struct fcl_nic *nic)
{
	return &nic->address;
}

int fcl_nic_descriptor(const struct fcl_nic *nic)
{
	(void)nic;
	return -1;
}

/* Now and then the kernel takes nothing for a while. */
uint8_t *fcl_nic_room(struct fcl_nic *nic)
{
	if (nic->closed == 0 && storm_draw(500) == 0)
		nic->closed = 1 + storm_draw(100);
	nic->closed -= nic->closed > 0;
	return nic->closed ? NULL : nic->room;
}

void fcl_nic_commit(struct fcl_nic *nic, size_t length)
{
	struct fcl_nic *other = nics[nic == nics[0]];
	uint8_t copy[FCL_FRAME_MAX];
	memcpy(copy, nic->room, length);
	if (storm_draw(40) == 0)
		length = damage(copy, length);
	deliver(other, copy, length);
	if (storm_draw(50) == 0)
		deliver(other, copy, length);
}

int fcl_nic_flush(struct fcl_nic *nic)
{
	(void)nic;
	return 0;
}

bool fcl_nic_backlog(const struct fcl_nic *nic)
{
	(void)nic;
	return false;
}

int fcl_nic_receive(struct fcl_nic *nic)
{
	while (nic->taken_count)
		free(nic->taken[--nic->taken_count].bytes);
	while (nic->taken_count < 64 && nic->head != nic->tail)
		nic->taken[nic->taken_count++] = nic->queue[nic->head++ % QUEUE];
	return nic->taken_count;
}

const uint8_t *fcl_nic_frame(const struct fcl_nic *nic, int number, size_t *bytes)
{
	*bytes = nic->taken[number].length;
	return nic->taken[number].bytes;
}
