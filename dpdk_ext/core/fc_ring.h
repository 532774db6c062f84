/* The ring frames travel in: one per RX queue, in named shared memory. This
 * file is the layout; it is read by the compiler and, without its # lines, by
 * cffi. Change anything here and FC_LAYOUT_VERSION moves.
 *
 *   0        struct fc_ring_header (positions on cache lines of their own)
 *   2 MiB    slots; FC_HUGE_PAGE_BYTES / slot_bytes per 2 MiB page, so that
 *            none crosses a page
 *
 *   who        writes                                   reads
 *   capture    slot (but its mark), head, source_end    tail
 *   parser     slot.mark, parsed                        head
 *   extractor  tail and counters of its own reader      parsed
 *
 * A ring has as many readers as jobs are followed, each with an extractor of its own:
 * a slot is free once all of them have passed it.
 *
 * Positions are 64-bit counts of slots since creation and never wrap; index =
 * position & (slots - 1) at the access only. head - the least tail == slots is full.
 *
 * Counters are committed twice over: a stage fills the copy that is not in force, stamps it
 * and only then publishes its position. The copy whose at_position equals the position is in
 * force, of two the one with the greater sequence: where no slot moved. So a reader, and
 * whoever begins after a kill, finds one that is whole. */
#ifndef FC_RING_H
#define FC_RING_H

#include "fc_counters.h"

enum {
	FC_LAYOUT_VERSION = 8,
	FC_READERS_MAX = 64,
	FC_SLOT_HEADER_BYTES = 64,
	FC_SLOT_BYTES_DEFAULT = 4352,
	FC_RING_SLOTS_OFFSET = 2097152,
};

/* The parser's word about a slot. Written by the parser alone. */
struct fc_mark {
	uint64_t message;       /* position in the message pool, 0 if none */
	uint64_t rival;         /* another message that this packet may be of, 0 if none */
	uint64_t psn;           /* unwrapped, see fc_flow.h */
	uint32_t flow;          /* index in the flow table */
	uint32_t offset_bytes;  /* of the payload in its message */
	uint16_t payload_at;    /* from the start of the frame */
	uint16_t payload_bytes; /* without pad and ICRC */
	uint8_t verdict;        /* enum fc_verdict */
	uint8_t opcode;         /* BTH opcode */
	uint8_t again;          /* this PSN was seen before */
	uint8_t alike;          /* both messages say the same of themselves: neither is believed */
};

struct fc_slot {
	uint64_t timestamp_ns; /* when captured; 0 if unknown */
	uint32_t frame_bytes;  /* bytes in `frame` */
	uint32_t wire_bytes;   /* bytes the frame had on the wire */
	uint64_t source_frame; /* ordinal of the frame at its source, from 0 */
	struct fc_mark mark;
	uint8_t frame[]; /* up to slot_bytes - 64 */
};

struct fc_capture_commit {
	uint64_t at_position; /* head this copy belongs to; UINT64_MAX while it is written */
	uint64_t sequence;
	uint64_t source_frames; /* frames taken from the source: where a file source resumes */
	struct fc_capture_counters counters;
};

struct fc_parse_commit {
	uint64_t at_position; /* parsed this copy belongs to; UINT64_MAX while it is written */
	uint64_t sequence;
	struct fc_parse_counters counters;
};

struct fc_extract_commit {
	uint64_t at_position; /* tail this copy belongs to; UINT64_MAX while it is written */
	uint64_t sequence;
	struct fc_extract_counters counters;
};

/* One extractor's place in the ring, on cache lines of its own. */
struct fc_reader {
	uint64_t tail;
	uint8_t pad_tail[120];
	struct fc_extract_commit extract[2];
	uint8_t pad_extract[96];
};

struct fc_ring_header {
	uint8_t magic[8]; /* "FCRING\0\0" */
	uint32_t layout_version;
	uint32_t slot_bytes;
	uint64_t slots; /* a power of two */
	uint64_t slots_per_page;
	uint64_t file_bytes;
	uint32_t huge_pages;  /* 1: backed by 2 MiB pages */
	uint32_t live_source; /* 1: full means drop and count; 0: full means do not poll */
	uint64_t readers;     /* in use; set before anyone captures */
	uint8_t pad_identity[72];

	uint64_t head;
	uint64_t source_end; /* UINT64_MAX until the source ends, then the last head */
	uint8_t pad_head[112];
	uint64_t parsed;
	uint8_t pad_parsed[120];

	struct fc_reader readers_of[FC_READERS_MAX];

	struct fc_capture_commit capture[2];
	struct fc_parse_commit parse[2];
};

#endif
