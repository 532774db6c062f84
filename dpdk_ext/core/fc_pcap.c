/* pcap: draft-ietf-opsawg-pcap, section 4. pcapng: draft-ietf-opsawg-pcapng,
 * sections 3 and 4. Everything read from the file is checked against its end. */
#include "fc_pcap.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "fc_error.h"

enum {
	LINKTYPE_ETHERNET = 1,
	PCAP_MICROSECONDS = 0xa1b2c3d4,
	PCAP_NANOSECONDS = 0xa1b23c4d,
	BLOCK_SECTION = 0x0a0d0d0a,
	BLOCK_INTERFACE = 1,
	BLOCK_PACKET_OBSOLETE = 2,
	BLOCK_PACKET_SIMPLE = 3,
	BLOCK_PACKET_ENHANCED = 6,
	BYTE_ORDER_MAGIC = 0x1a2b3c4d,
	OPTION_TSRESOL = 9,
	INTERFACES_MAX = 64,
	FRAME_BYTES_MAX = 262144,
};

struct interface {
	uint32_t snaplen;
	uint64_t ticks_per_second;
};

struct fc_pcap {
	struct fc_map map;
	char path[256];
	uint64_t at, start;
	uint64_t delivered;
	struct interface interfaces[INTERFACES_MAX];
	uint32_t interfaces_used;
	uint32_t snaplen_least;
	bool swapped, next_generation, nanoseconds, ended;
	const char *torn; /* what is wrong with the file, once it was met */
};

static uint32_t word32(const struct fc_pcap *pcap, uint64_t at)
{
	uint32_t value;

	memcpy(&value, pcap->map.base + at, sizeof value);
	return pcap->swapped ? __builtin_bswap32(value) : value;
}

static uint16_t word16(const struct fc_pcap *pcap, uint64_t at)
{
	uint16_t value;

	memcpy(&value, pcap->map.base + at, sizeof value);
	return pcap->swapped ? __builtin_bswap16(value) : value;
}

static bool has(const struct fc_pcap *pcap, uint64_t at, uint64_t bytes)
{
	return bytes <= pcap->map.bytes && at <= pcap->map.bytes - bytes;
}

static int torn(struct fc_pcap *pcap, const char *what)
{
	pcap->torn = what;
	pcap->ended = true;
	return fc_fail(EBADMSG, "%s is torn at byte %llu (%s); %llu frames before it were read",
		       pcap->path, (unsigned long long)pcap->at, what,
		       (unsigned long long)pcap->delivered);
}

static void note_snaplen(struct fc_pcap *pcap, uint32_t snaplen)
{
	if (snaplen && (!pcap->snaplen_least || snaplen < pcap->snaplen_least))
		pcap->snaplen_least = snaplen;
}

static int open_classic(struct fc_pcap *pcap, uint32_t magic)
{
	if (!has(pcap, 0, 24))
		return fc_fail(EBADMSG, "%s ends inside its file header", pcap->path);
	pcap->nanoseconds = magic == PCAP_NANOSECONDS;
	if (word16(pcap, 4) != 2)
		return fc_fail(EPROTO, "%s is of pcap version %u, this program reads 2", pcap->path,
			       word16(pcap, 4));
	/* The upper bits say whether frames carry their FCS. */
	if ((word32(pcap, 20) & 0x0fffffff) != LINKTYPE_ETHERNET)
		return fc_fail(EPROTO, "%s has link type %u, this program reads Ethernet (1)",
			       pcap->path, word32(pcap, 20) & 0x0fffffff);
	note_snaplen(pcap, word32(pcap, 16));
	pcap->start = pcap->at = 24;
	return 0;
}

int fc_pcap_open(const char *path, struct fc_pcap **out)
{
	struct fc_pcap *pcap = calloc(1, sizeof *pcap);

	*out = NULL;
	if (!pcap)
		return fc_fail(ENOMEM, "no memory to open %s", path);
	strncpy(pcap->path, path, sizeof pcap->path - 1);
	int code = fc_map_open(path, 0, &pcap->map);
	if (code == 0 && !has(pcap, 0, 12))
		code = fc_fail(EBADMSG, "%s is too short to be a capture file", path);
	if (code == 0) {
		const uint32_t magic = word32(pcap, 0);
		const uint32_t other = __builtin_bswap32(magic);

		if (magic == BLOCK_SECTION) {
			pcap->next_generation = true;
		} else if (magic == PCAP_MICROSECONDS || magic == PCAP_NANOSECONDS) {
			code = open_classic(pcap, magic);
		} else if (other == PCAP_MICROSECONDS || other == PCAP_NANOSECONDS) {
			pcap->swapped = true;
			code = open_classic(pcap, other);
		} else {
			code = fc_fail(EBADMSG, "%s is neither pcap nor pcapng (first word %08x)",
				       path, magic);
		}
	}
	if (code < 0) {
		fc_pcap_close(pcap);
		return code;
	}
	*out = pcap;
	return 0;
}

void fc_pcap_close(struct fc_pcap *pcap)
{
	if (pcap) {
		fc_map_close(&pcap->map);
		free(pcap);
	}
}

void fc_pcap_rewind(struct fc_pcap *pcap)
{
	pcap->at = pcap->start;
	pcap->delivered = 0;
	pcap->ended = false;
	pcap->torn = NULL;
	pcap->interfaces_used = 0;
}

uint64_t fc_pcap_position(const struct fc_pcap *pcap)
{
	return pcap->delivered;
}

uint32_t fc_pcap_snaplen(const struct fc_pcap *pcap)
{
	return pcap->snaplen_least;
}

int fc_pcap_ended(const struct fc_pcap *pcap)
{
	return pcap->ended;
}

static int next_classic(struct fc_pcap *pcap, struct fc_pcap_frame *out)
{
	if (pcap->at == pcap->map.bytes) {
		pcap->ended = true;
		return 0;
	}
	if (!has(pcap, pcap->at, 16))
		return torn(pcap, "inside a record header");
	const uint64_t fraction = word32(pcap, pcap->at + 4);
	out->timestamp_ns = word32(pcap, pcap->at) * 1000000000ull +
			    (pcap->nanoseconds ? fraction : fraction * 1000);
	out->frame_bytes = word32(pcap, pcap->at + 8);
	out->wire_bytes = word32(pcap, pcap->at + 12);
	if (out->frame_bytes > FRAME_BYTES_MAX)
		return torn(pcap, "a frame of impossible length");
	if (!has(pcap, pcap->at + 16, out->frame_bytes))
		return torn(pcap, "inside a frame");
	out->bytes = pcap->map.base + pcap->at + 16;
	pcap->at += 16 + (uint64_t)out->frame_bytes;
	return 1;
}

static int read_section(struct fc_pcap *pcap)
{
	uint32_t magic;

	memcpy(&magic, pcap->map.base + pcap->at + 8, sizeof magic);
	if (magic != BYTE_ORDER_MAGIC && __builtin_bswap32(magic) != BYTE_ORDER_MAGIC)
		return torn(pcap, "a section without byte order");
	pcap->swapped = magic != BYTE_ORDER_MAGIC;
	if (word16(pcap, pcap->at + 12) != 1)
		return torn(pcap, "a section of a newer pcapng version");
	pcap->interfaces_used = 0;
	return 0;
}

/* if_tsresol: bit 7 set: 2^-n seconds, else 10^-n (section 4.2). */
static uint64_t ticks_per_second(uint8_t resolution)
{
	uint64_t ticks = 1;

	if (resolution & 0x80)
		return (resolution & 0x7f) < 63 ? 1ull << (resolution & 0x7f) : 0;
	for (unsigned n = 0; n < resolution; n++) {
		if (ticks > UINT64_MAX / 10)
			return 0;
		ticks *= 10;
	}
	return ticks;
}

static int read_interface(struct fc_pcap *pcap, uint32_t block_bytes)
{
	if (block_bytes < 20 || pcap->interfaces_used == INTERFACES_MAX)
		return torn(pcap, "an interface description too short, or too many");
	if (word16(pcap, pcap->at + 8) != LINKTYPE_ETHERNET)
		return torn(pcap, "an interface that is not Ethernet");
	struct interface *it = &pcap->interfaces[pcap->interfaces_used++];
	it->snaplen = word32(pcap, pcap->at + 12);
	it->ticks_per_second = 1000000;
	note_snaplen(pcap, it->snaplen);
	uint64_t at = pcap->at + 16;
	const uint64_t stop = pcap->at + block_bytes - 4;
	while (at + 4 <= stop) {
		const uint16_t code = word16(pcap, at), bytes = word16(pcap, at + 2);

		if (code == 0 || at + 4 + bytes > stop)
			break;
		if (code == OPTION_TSRESOL && bytes == 1)
			it->ticks_per_second = ticks_per_second(pcap->map.base[at + 4]);
		at += 4 + ((uint64_t)bytes + 3) / 4 * 4;
	}
	return 0;
}

static uint64_t to_nanoseconds(uint64_t ticks, uint64_t per_second)
{
	if (!per_second)
		return 0;
	const unsigned __int128 fraction = (unsigned __int128)(ticks % per_second) * 1000000000u;
	return ticks / per_second * 1000000000u + (uint64_t)(fraction / per_second);
}

/* Fills `out` from an Enhanced (6) or obsolete (2) packet block, or a Simple one. */
static int read_packet(struct fc_pcap *pcap, uint32_t kind, uint32_t block_bytes,
		       struct fc_pcap_frame *out)
{
	const bool simple = kind == BLOCK_PACKET_SIMPLE;
	const uint32_t header = simple ? 12 : 28;

	if (block_bytes < header + 4)
		return torn(pcap, "a packet block too short");
	const uint64_t at = pcap->at;
	const uint32_t id = simple                          ? 0
			    : kind == BLOCK_PACKET_ENHANCED ? word32(pcap, at + 8)
							    : word16(pcap, at + 8);
	if (id >= pcap->interfaces_used)
		return torn(pcap, "a packet of an interface never described");
	const struct interface *it = &pcap->interfaces[id];
	if (simple) {
		out->wire_bytes = word32(pcap, at + 8);
		out->frame_bytes = out->wire_bytes;
		if (it->snaplen && out->frame_bytes > it->snaplen)
			out->frame_bytes = it->snaplen;
		out->timestamp_ns = 0;
	} else {
		const uint64_t ticks =
			(uint64_t)word32(pcap, at + 12) << 32 | word32(pcap, at + 16);

		out->timestamp_ns = to_nanoseconds(ticks, it->ticks_per_second);
		out->frame_bytes = word32(pcap, at + 20);
		out->wire_bytes = word32(pcap, at + 24);
	}
	if (out->frame_bytes > FRAME_BYTES_MAX || out->frame_bytes > block_bytes - header - 4)
		return torn(pcap, "a frame longer than its block");
	out->bytes = pcap->map.base + at + header;
	return 1;
}

static int next_generation(struct fc_pcap *pcap, struct fc_pcap_frame *out)
{
	while (pcap->at < pcap->map.bytes) {
		if (!has(pcap, pcap->at, 12))
			return torn(pcap, "inside a block header");
		const uint32_t kind = word32(pcap, pcap->at);
		int code = 0;

		/* The byte order of a section is known only from inside it. */
		if (kind == BLOCK_SECTION) {
			if (!has(pcap, pcap->at, 28))
				return torn(pcap, "inside a section header");
			code = read_section(pcap);
			if (code < 0)
				return code;
		}
		const uint32_t bytes = word32(pcap, pcap->at + 4);
		if (bytes < 12 || bytes % 4 || !has(pcap, pcap->at, bytes))
			return torn(pcap, "inside a block");
		if (kind == BLOCK_INTERFACE)
			code = read_interface(pcap, bytes);
		else if (kind == BLOCK_PACKET_ENHANCED || kind == BLOCK_PACKET_SIMPLE ||
			 kind == BLOCK_PACKET_OBSOLETE)
			code = read_packet(pcap, kind, bytes, out);
		if (code < 0)
			return code;
		pcap->at += bytes;
		if (code == 1)
			return 1;
	}
	pcap->ended = true;
	return 0;
}

int fc_pcap_next(struct fc_pcap *pcap, struct fc_pcap_frame *out)
{
	if (pcap->ended)
		return pcap->torn ? torn(pcap, pcap->torn) : 0;
	const int code =
		pcap->next_generation ? next_generation(pcap, out) : next_classic(pcap, out);
	if (code == 1)
		pcap->delivered++;
	return code;
}

int64_t fc_pcap_fill(struct fc_pcap *pcap, struct fc_ring *ring, uint64_t limit,
		     struct fc_capture_commit *commit)
{
	uint64_t pushed = 0, taken = 0;
	int code = 1;

	while (taken < limit &&
	       fc_ring_head(ring) + pushed - fc_ring_least_tail(ring) <= ring->mask) {
		struct fc_pcap_frame frame;

		code = fc_pcap_next(pcap, &frame);
		if (code <= 0)
			break;
		struct fc_capture_counters *counters = &commit->counters;
		taken++;
		counters->rx_frames++;
		counters->rx_bytes += frame.frame_bytes;
		if (fc_ring_put(ring, pushed, frame.bytes, frame.frame_bytes, frame.wire_bytes,
				frame.timestamp_ns, commit->source_frames++) < 0) {
			counters->oversize_frames++;
			continue;
		}
		pushed++;
		counters->pushed_frames++;
		counters->snapped_frames += frame.frame_bytes < frame.wire_bytes;
	}
	if (taken)
		fc_ring_publish(ring, pushed, commit);
	return code < 0 && !taken ? code : (int64_t)taken;
}
