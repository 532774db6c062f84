/* The plan of a flow: what to do with its messages. Tables that Python computes
 * (flowcheck/wire/training_job/flow_plan.py) and fc_placement.c uses. Read by the compiler and by
 * cffi.
 *  */
#ifndef FC_PLAN_H
#define FC_PLAN_H

#include <stdint.h>

enum fc_plan_state {
	FC_PLAN_UNKNOWN,   /* stage all messages */
	FC_PLAN_IGNORE,    /* place nothing of this flow */
	FC_PLAN_ACTIVE,    /* place messages by their number */
	FC_PLAN_SUSPENDED, /* a message differed from the plan: stage all messages */
};

/* NCCL src/include/nccl_tuner.h, NCCL_PROTO_*; the last one is LL128 before NCCL 2.10 */
enum fc_protocol {
	FC_PROTOCOL_LL,
	FC_PROTOCOL_LL128,
	FC_PROTOCOL_SIMPLE,
	FC_PROTOCOL_LL128_LINEAR,
	FC_PROTOCOLS,
};

enum fc_send_kind {
	FC_SEND_IGNORED, /* no gradient */
	FC_SEND_PARTIAL, /* a partial sum: its size is checked, it is not placed */
	FC_SEND_FINAL,   /* final data: placed by its segments */
};

/* A run of a message's unpacked bytes that is contiguous in the flat gradient. */
struct fc_segment {
	uint32_t data_byte, data_bytes; /* in the message, after unpacking */
	uint64_t dst_byte;              /* in the gradient, registration order */
};

struct fc_send {
	uint32_t wire_bytes;    /* a message of another size deviates */
	uint32_t first_segment; /* index of its first segment; ascending by data_byte */
	uint32_t segments;
	uint8_t protocol, kind;
	uint8_t skip_lines;    /* LL128: lines of the first group on another queue pair */
	uint8_t module_buffer; /* 1: its segments are after the gradient */
};

/* A plan whose messages are placed in any order. */
#define FC_NO_FRONTIER UINT64_MAX

enum {
	FC_FLOW_SKIPS = 16, /* stored skips, the latest; earlier messages belong to no step */
};

/* A skip: messages [from, resume) belong to no step; from `resume` on, message number minus
 * `skipped` (mod 2^64) is the number in the plan. */
struct fc_skip {
	uint64_t from, resume, skipped;
};

/* Message `first_number` is the first send of step `first_step`. `first_sends` entries are for
 * that step and, from `second_at` on, for the next one. Each later step repeats the `each_sends`
 * entries. The queue pairs of a connection carry its messages in turn and share one plan: all its
 * numbers are of the connection; message n of a flow has number n * stride + phase. */
struct fc_flow_plan {
	uint64_t state; /* enum fc_plan_state; written last */
	uint64_t first_number, first_step;
	uint64_t first_sends, each_sends;
	uint64_t first_at, each_at; /* index of their first entry in the table */
	uint64_t flag_offset;       /* LL line flag - message number, 32 bit; UINT64_MAX: unknown */
	uint64_t last_step;         /* step of the furthest message with a placement; 0: none */
	uint64_t deviating_number;  /* message that suspended the plan; UINT64_MAX: none */
	uint64_t next_number;       /* one past the furthest message that was placed or ignored */
	uint64_t skips_used;        /* total number; skip n is at n % FC_FLOW_SKIPS, ascending */
	uint64_t frontier;          /* index in the shard; FC_NO_FRONTIER: none */
	uint64_t stride, phase;     /* queue pairs of the connection, and this flow's turn */
	uint64_t second_at;         /* index into the first sends; UINT64_MAX: they are one step */
	/* For a flow whose start was not captured: its run of messages, and what is added to a
	 * position in it to get a number, mod 2^64. 0: numbers count from the flow's start. */
	uint64_t run_psn, run_shift;
	uint64_t spare[6];
	struct fc_skip skips[FC_FLOW_SKIPS];
};

#endif
