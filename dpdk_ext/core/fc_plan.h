/* What Python tells C to do with the messages of a flow. Tables only: computed
 * by flowcheck.wire.plan, obeyed by fc_home.c. Read by the compiler and by cffi. */
#ifndef FC_PLAN_H
#define FC_PLAN_H

#include <stdint.h>

enum fc_plan_state {
	FC_PLAN_UNKNOWN,   /* stage everything */
	FC_PLAN_IGNORE,    /* nothing of this flow is placed */
	FC_PLAN_ACTIVE,    /* messages have homes by their number */
	FC_PLAN_SUSPENDED, /* a message was not as planned: stage everything again */
};

/* NCCL src/include/nccl_tuner.h, NCCL_PROTO_*; the last one is LL128 of releases before 2.10 */
enum fc_protocol {
	FC_PROTOCOL_LL,
	FC_PROTOCOL_LL128,
	FC_PROTOCOL_SIMPLE,
	FC_PROTOCOL_LL128_LINEAR,
	FC_PROTOCOLS,
};

enum fc_send_kind {
	FC_SEND_IGNORED, /* no gradient */
	FC_SEND_PARTIAL, /* a partial sum: checked for size, placed nowhere */
	FC_SEND_FINAL,   /* result bytes: placed by its segments */
};

/* A run of a message's unpacked bytes with one home in the flat gradient. */
struct fc_segment {
	uint32_t data_byte, data_bytes; /* in the message, after unpacking */
	uint64_t dst_byte;              /* in the gradient, registration order */
};

struct fc_send {
	uint32_t wire_bytes;    /* a message of another size is a deviation */
	uint32_t first_segment; /* index of its first segment; ascending by data_byte */
	uint32_t segments;
	uint8_t protocol, kind;
	uint8_t skip_lines; /* LL128: lines of its first group that another queue pair carries */
	uint8_t held;       /* 1: its segments lie behind the gradient */
};

/* A plan whose messages get homes in any order. */
#define FC_NO_FRONTIER UINT64_MAX

enum {
	FC_FLOW_SKIPS = 16, /* the latest ones; a message before them belongs to no step */
};

/* Where the stream leaves the plan: messages [from, resume) belong to no step, and
 * from `resume` on a message's number less `skipped`, mod 2^64, counts in the plan. */
struct fc_skip {
	uint64_t from, resume, skipped;
};

/* Message `first_number` is the first send of step `first_step`. A table lists
 * `first_sends`, of that step and, from `second_at` on, of the next one. Every later step
 * repeats `each_sends`. The queue pairs of one connection take its messages by turns and
 * have one plan: all numbers in it are of the connection, of which a flow's message n is
 * n * stride + phase. */
struct fc_flow_plan {
	uint64_t state; /* enum fc_plan_state; written last */
	uint64_t first_number, first_step;
	uint64_t first_sends, each_sends;
	uint64_t first_at, each_at; /* index of their first send in the table */
	uint64_t flag_offset;       /* LL line flag - message number, 32 bit; UINT64_MAX unknown */
	uint64_t last_step;         /* of the furthest message that was given a home; 0: none */
	uint64_t deviating_number;  /* of the message that suspended it; UINT64_MAX: none did */
	uint64_t next_number;       /* one past the furthest message that was placed or ignored */
	uint64_t skips_used;        /* ever; skip `n` lies at n % FC_FLOW_SKIPS, ascending */
	uint64_t frontier;          /* which of the shard's it moves; FC_NO_FRONTIER: none */
	uint64_t stride, phase;     /* queue pairs of the connection, and whose turn this flow is */
	uint64_t second_at;         /* into the first sends; UINT64_MAX: they are one step's */
	/* Of a flow whose start was not seen: the run of messages it is followed in, and what a
	 * place there lacks of a number, mod 2^64. 0: numbers count from its start. */
	uint64_t run_psn, run_shift;
	uint64_t spare[6];
	struct fc_skip skips[FC_FLOW_SKIPS];
};

#endif
