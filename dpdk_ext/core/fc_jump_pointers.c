/* Jump pointers through a flow's list of messages. Anybody can send a packet with an old PSN; to
 * find its message record by record would cost one cache miss per record of the flow. So each
 * record has a pointer to an earlier record, as in a skew-binary list (E. W. Myers, 1983: an
 * applicative random-access stack), by which any record is found in about 2 log2(distance) steps.
 * A pointer only skips records after the PSN that is searched, so a late insertion never makes it
 * wrong, and a missing pointer only costs time. The pointers are in the parser's own memory; a new
 * parser computes them again. */
#include <stdlib.h>

#include "fc_flow_ops.h"

struct fc_jump_pointer {
	uint64_t to;    /* position; 0: none */
	uint64_t depth; /* approximate number of records up to this one; 0: not in a list */
};

static struct fc_jump_pointer *jump_of(const struct fc_flows *flows, uint64_t position)
{
	return &flows->jumps[position & flows->mask];
}

/* The record that a pointer leads to, if the pool still has it. */
static const struct fc_message *target(const struct fc_flows *flows, uint64_t position)
{
	const struct fc_message *message = fc_message_at(flows, position);

	return message && jump_of(flows, position)->depth ? message : NULL;
}

uint64_t fc_jump_before(const struct fc_flows *flows, const struct fc_message *message,
			uint64_t psn)
{
	if (!flows->jumps)
		return message->previous;
	const uint64_t to = jump_of(flows, message->position)->to;
	const struct fc_message *far = target(flows, to);

	return far && far->first_psn > psn ? to : message->previous;
}

static void set_way(struct fc_flows *flows, uint64_t position, uint64_t before)
{
	struct fc_jump_pointer *own = jump_of(flows, position);

	*own = (struct fc_jump_pointer){ .depth = 1 };
	if (!target(flows, before))
		return;
	const struct fc_jump_pointer *near = jump_of(flows, before);
	own->depth = near->depth + 1;
	own->to = before;
	if (!target(flows, near->to))
		return;
	const struct fc_jump_pointer *far = jump_of(flows, near->to);
	const uint64_t farther = target(flows, far->to) ? jump_of(flows, far->to)->depth : 0;
	if (near->depth - far->depth == far->depth - farther)
		own->to = far->to ? far->to : before;
}

void fc_jump_set(struct fc_flows *flows, uint64_t position, const struct fc_message *before)
{
	if (flows->jumps)
		set_way(flows, position, before ? before->position : 0);
}

void fc_jump_forget(struct fc_flows *flows, const struct fc_message *message)
{
	if (flows->jumps)
		*jump_of(flows, message->position) = (struct fc_jump_pointer){ 0 };
}

/* Computes the pointers of one list from its oldest record on; `list` has room for the pool. */
static void find_ways(struct fc_flows *flows, const struct fc_flow *flow, uint64_t *list)
{
	uint64_t count = 0, position = flow->last_message;

	for (const struct fc_message *m;
	     count <= flows->mask && (m = fc_message_at(flows, position)); position = m->previous)
		list[count++] = position;
	for (uint64_t before = 0; count-- > 0; before = list[count])
		set_way(flows, list[count], before);
}

bool fc_jumps_open(struct fc_parser *parser)
{
	struct fc_flows *flows = parser->flows;
	uint64_t *list = calloc(flows->mask + 1, sizeof *list);

	parser->jumps = flows->jumps = calloc(flows->mask + 1, sizeof *flows->jumps);
	if (list && flows->jumps)
		for (uint64_t i = 0; i < flows->header->flows_used; i++)
			find_ways(flows, &flows->flows[i], list);
	const bool done = list && flows->jumps;
	free(list);
	return done;
}

void fc_jumps_close(struct fc_parser *parser)
{
	if (parser->flows->jumps == parser->jumps)
		parser->flows->jumps = NULL;
	free(parser->jumps);
}
