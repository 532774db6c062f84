/* pcapng: draft-ietf-opsawg-pcapng, sections 3 and 4. */
#include "fc_pcap_file.h"

enum {
	BLOCK_INTERFACE = 1,
	BLOCK_PACKET_OBSOLETE = 2,
	BLOCK_PACKET_SIMPLE = 3,
	BLOCK_PACKET_ENHANCED = 6,
	BYTE_ORDER_MAGIC = 0x1a2b3c4d,
	OPTION_TSRESOL = 9,
};

static int read_section(struct fc_pcap *pcap)
{
	uint32_t magic;

	memcpy(&magic, pcap->map.base + pcap->at + 8, sizeof magic);
	if (magic != BYTE_ORDER_MAGIC && __builtin_bswap32(magic) != BYTE_ORDER_MAGIC)
		return fc_pcap_torn(pcap, FC_ERROR_TORN_BYTE_ORDER);
	pcap->swapped = magic != BYTE_ORDER_MAGIC;
	if (fc_pcap_word16(pcap, pcap->at + 12) != 1)
		return fc_pcap_torn(pcap, FC_ERROR_TORN_SECTION_VERSION);
	pcap->interfaces_used = 0;
	return 0;
}

/* if_tsresol: if bit 7 is set, 2^-n seconds, else 10^-n (section 4.2). */
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
	if (block_bytes < 20 || pcap->interfaces_used == FC_PCAP_INTERFACES_MAX)
		return fc_pcap_torn(pcap, FC_ERROR_TORN_INTERFACE);
	if (fc_pcap_word16(pcap, pcap->at + 8) != FC_PCAP_ETHERNET)
		return fc_pcap_not_ethernet(pcap, fc_pcap_word16(pcap, pcap->at + 8));
	struct fc_pcap_interface *it = &pcap->interfaces[pcap->interfaces_used++];
	it->snaplen = fc_pcap_word32(pcap, pcap->at + 12);
	it->ticks_per_second = 1000000;
	fc_pcap_note_snaplen(pcap, it->snaplen);
	uint64_t at = pcap->at + 16;
	const uint64_t stop = pcap->at + block_bytes - 4;
	while (at + 4 <= stop) {
		const uint16_t code = fc_pcap_word16(pcap, at),
			       bytes = fc_pcap_word16(pcap, at + 2);

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

/* Fills `out` from an Enhanced (6), obsolete (2) or Simple packet block. */
static int read_packet(struct fc_pcap *pcap, uint32_t kind, uint32_t block_bytes,
		       struct fc_pcap_frame *out)
{
	const bool simple = kind == BLOCK_PACKET_SIMPLE;
	const uint32_t header = simple ? 12 : 28;

	if (block_bytes < header + 4)
		return fc_pcap_torn(pcap, FC_ERROR_TORN_PACKET_BLOCK_SHORT);
	const uint64_t at = pcap->at;
	const uint32_t id = simple                          ? 0
			    : kind == BLOCK_PACKET_ENHANCED ? fc_pcap_word32(pcap, at + 8)
							    : fc_pcap_word16(pcap, at + 8);
	if (id >= pcap->interfaces_used)
		return fc_pcap_torn(pcap, FC_ERROR_TORN_PACKET_INTERFACE);
	const struct fc_pcap_interface *it = &pcap->interfaces[id];
	if (simple) {
		out->wire_bytes = fc_pcap_word32(pcap, at + 8);
		out->frame_bytes = out->wire_bytes;
		if (it->snaplen && out->frame_bytes > it->snaplen)
			out->frame_bytes = it->snaplen;
		out->timestamp_ns = 0;
	} else {
		const uint64_t ticks = (uint64_t)fc_pcap_word32(pcap, at + 12) << 32 |
				       fc_pcap_word32(pcap, at + 16);

		out->timestamp_ns = to_nanoseconds(ticks, it->ticks_per_second);
		out->frame_bytes = fc_pcap_word32(pcap, at + 20);
		out->wire_bytes = fc_pcap_word32(pcap, at + 24);
	}
	if (out->frame_bytes > FC_PCAP_FRAME_BYTES_MAX ||
	    out->frame_bytes > block_bytes - header - 4)
		return fc_pcap_torn(pcap, FC_ERROR_TORN_FRAME_OVER_BLOCK);
	out->bytes = pcap->map.base + at + header;
	return 1;
}

int fc_pcapng_next(struct fc_pcap *pcap, struct fc_pcap_frame *out)
{
	while (pcap->at < pcap->map.bytes) {
		if (!fc_pcap_has(pcap, pcap->at, 12))
			return fc_pcap_torn(pcap, FC_ERROR_TORN_IN_BLOCK_HEADER);
		const uint32_t kind = fc_pcap_word32(pcap, pcap->at);
		int code = 0;

		/* The byte order of a section is stated inside it. */
		if (kind == FC_PCAPNG_SECTION) {
			if (!fc_pcap_has(pcap, pcap->at, 28))
				return fc_pcap_torn(pcap, FC_ERROR_TORN_IN_SECTION_HEADER);
			code = read_section(pcap);
			if (code < 0)
				return code;
		}
		const uint32_t bytes = fc_pcap_word32(pcap, pcap->at + 4);
		if (bytes < 12 || bytes % 4 || !fc_pcap_has(pcap, pcap->at, bytes))
			return fc_pcap_torn(pcap, FC_ERROR_TORN_IN_BLOCK);
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
