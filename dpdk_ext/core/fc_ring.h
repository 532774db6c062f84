/* The ring: slots with captured frames, one ring per RX queue, in named shared memory. This file
 * is the layout. It is read by the compiler and, without its # lines, by cffi. Every change here
 * needs a new FC_LAYOUT_VERSION.
 *
 * A slot is a header and a frame. The headers lie side by side: the CPU fetches the next ones by
 * itself, and of a slot all that is not its frame needs one page for many.
 *
 * 0        struct fc_ring_header (positions on cache lines of their own)
 * 128 KiB  headers of slots: an array of struct fc_slot
 * n MiB    frames, from the first 2 MiB page behind the headers; as many in each page as fit, so
 *          that none crosses a page: engines copy to addresses that go on in one only
 *
 * process    writes                                   reads
 * capture    slot (except its mark), head, source_end tail, icrc_every
 * parser     slot.mark, parsed, icrc_every            head
 * extractor  tail and counters of its own reader      parsed
 *
 * A ring has one reader per followed job, each with its own extractor. A slot is free when all
 * readers have passed it.
 *
 * Positions are 64-bit counts of slots since creation and never wrap; index = position & (slots -
 * 1) only at the access. The ring is full if head minus the smallest tail equals slots.
 *
 * Counters are committed in two copies: a stage fills the copy that is not valid, stamps it, and
 * then publishes its position. Valid is the copy whose at_position equals the position; if both do
 * (no slot moved), the one with the greater sequence. So a reader, also after a kill, always finds
 * a complete copy. */
#ifndef FC_RING_H
#define FC_RING_H

#include "fc_counters.h"

enum {
	FC_LAYOUT_VERSION = 11,
	FC_READERS_MAX = 64,
	FC_SLOT_HEADER_BYTES = 64,
	FC_SLOT_BYTES_DEFAULT = 4352,
	FC_RING_SLOTS_OFFSET = 131072,
};

/* The parser's result for a slot. Written by the parser only. */
struct fc_mark {
	uint64_t message;       /* position in the message pool, 0: none */
	uint64_t alternative;   /* another message that the packet may belong to, 0: none */
	uint64_t psn;           /* unwrapped, see fc_flow.h */
	uint32_t flow;          /* index in the flow table */
	uint32_t offset_bytes;  /* offset of the payload in its message */
	uint16_t payload_at;    /* from the start of the frame */
	uint16_t payload_bytes; /* without pad and ICRC */
	uint8_t verdict;        /* enum fc_verdict */
	uint8_t opcode;         /* BTH opcode */
	uint8_t again;          /* 1: this PSN was seen before */
	uint8_t same_headers;   /* 1: both messages have equal headers: neither is trusted */
};

/* The header of a slot. */
struct fc_slot {
	uint64_t timestamp_ns; /* nanoseconds since 1970; 0: unknown */
	uint32_t wire_bytes;   /* bytes of the frame on the wire */
	uint16_t frame_bytes;  /* bytes in the ring, at most slot_bytes - FC_SLOT_HEADER_BYTES */
	/* The copy into the slot found the ICRC right of the packet whose IP header is at icrc_l3_at
	 * and whose ICRC is followed by icrc_after bytes of the frame; 0: nobody looked, or it is
	 * not right. */
	uint8_t icrc_l3_at, icrc_after;
	uint64_t source_frame; /* number of the frame at its source, from 0 */
	struct fc_mark mark;
};

struct fc_capture_commit {
	uint64_t at_position; /* head that this copy belongs to; UINT64_MAX: being written */
	uint64_t sequence;
	uint64_t source_frames; /* frames read from the source: where a file source resumes */
	struct fc_capture_counters counters;
};

struct fc_parse_commit {
	uint64_t at_position; /* parsed that this copy belongs to; UINT64_MAX: being written */
	uint64_t sequence;
	struct fc_parse_counters counters;
};

struct fc_extract_commit {
	uint64_t at_position; /* tail that this copy belongs to; UINT64_MAX: being written */
	uint64_t sequence;
	struct fc_extract_counters counters;
};

/* Position and counters of one extractor, on cache lines of their own. */
struct fc_reader {
	uint64_t tail;
	uint8_t pad_tail[120];
	struct fc_extract_commit extract[2];
	uint8_t pad_extract[96];
};

struct fc_ring_header {
	uint8_t magic[8]; /* "FCRING\0\0" */
	uint32_t layout_version;
	uint32_t slot_bytes;      /* of header and frame */
	uint64_t slots;           /* a power of two */
	uint64_t frames_per_page; /* of 2 MiB */
	uint64_t file_bytes;
	uint32_t huge_pages;  /* 1: backed by 2 MiB pages */
	uint32_t live_source; /* 1: drop and count if full; 0: do not poll if full */
	uint64_t readers;     /* number of readers; set before capture starts */
	/* Written by the parser when it starts: of every n-th slot, it wants the ICRC; 0: of none.
	 */
	uint64_t icrc_every;
	uint8_t pad_identity[64];

	uint64_t head;
	uint64_t source_end; /* UINT64_MAX until the source ends; then the last head */
	uint8_t pad_head[112];
	uint64_t parsed;
	uint8_t pad_parsed[120];

	struct fc_reader readers_of[FC_READERS_MAX];

	struct fc_capture_commit capture[2];
	struct fc_parse_commit parse[2];
};

#endif
