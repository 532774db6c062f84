/* The pool of message records. They are reused in the order in which they were made, whosever
 * messages they are of: other tenants of the port begin any number of messages while one queue pair
 * pauses in the middle of its own (congestion control; the timeout of a lost ACK, IB 9.7.6, with
 * NCCL's defaults 4 seconds). So an incomplete write is held if it is among the last ones of its
 * flow, and so are the complete ones behind it, by which it is found.
 *
 * A held record keeps its place until its message is complete and the pool has come round once more
 * without a mark that names it: by then the extractor has read all marks. If as many are held as
 * may be, those give way that no mark named for a round. */
#include "fc_flow_ops.h"

/* Messages of one connection that are under way at once and may be sent again (NCCL_STEPS in
 * src/include/device.h). */
#define UNDER_WAY 8

static void set_held(struct fc_parser *parser, struct fc_message *message,
		     enum fc_message_held held)
{
	/* a bit-field has no address: with it the end of its cache line */
	fc_touch_message_packet(parser, message);
	message->held = held & 0xf;
}

static bool is_complete(const struct fc_message *message)
{
	return message->packets_seen >= message->packets;
}

/* Whether packets of it are still to be expected. */
static bool is_open(const struct fc_message *message)
{
	return message->kind == FC_KIND_WRITE && !is_complete(message) &&
	       message->standing != FC_STANDING_UNPROVEN && !(message->flags & FC_MESSAGE_REFUSED);
}

/* Whether its flow still needs it: it, or one that is found through it, is open. */
static bool is_needed(const struct fc_flows *flows, const struct fc_message *message)
{
	uint64_t position = flows->flows[message->flow].last_message;
	bool through = false;

	for (int hops = 0; hops < UNDER_WAY; hops++) {
		const struct fc_message *m = fc_message_at(flows, position);
		if (!m)
			return false;
		through = through || m == message;
		if (through && is_open(m))
			return true;
		position = m->previous;
	}
	return false;
}

static bool is_behind_held(const struct fc_flows *flows, const struct fc_message *message)
{
	const struct fc_message *before = fc_message_at(flows, message->previous);

	return before && before->held;
}

static void hold_if_needed(struct fc_parser *parser, uint64_t position)
{
	struct fc_flows *flows = parser->flows;
	struct fc_message *message = &flows->messages[position & flows->mask];
	uint64_t *held = &flows->header->held_messages;

	if (FC_LIKELY(is_complete(message)) && (!*held || !is_behind_held(flows, message)))
		return;
	if (message->position != position || message->held || *held == fc_held_max(flows) ||
	    !is_needed(flows, message))
		return;
	set_held(parser, message, FC_HELD);
	(*held)++;
}

/* Whether the place of a record, which is due, can be used. */
static bool is_free(struct fc_parser *parser, struct fc_message *message)
{
	struct fc_flows *flows = parser->flows;
	uint64_t *held = &flows->header->held_messages;

	if (FC_LIKELY(!message->held))
		return true;
	if (message->held == FC_HELD_MARKED) {
		set_held(parser, message, FC_HELD);
		return false;
	}
	if (*held < fc_held_max(flows) && is_needed(flows, message))
		return false;
	set_held(parser, message, FC_HELD_NOT);
	(*held)--;
	return true;
}

uint64_t fc_message_pool_next(struct fc_parser *parser)
{
	const struct fc_flows *flows = parser->flows;
	const uint64_t reach = fc_record_reach(flows);
	uint64_t position = flows->header->messages_made;

	do {
		position++;
		if (position > reach)
			hold_if_needed(parser, position - reach);
	} while (!is_free(parser, &flows->messages[position & flows->mask]));
	return position;
}

void fc_message_pool_marked(struct fc_parser *parser, struct fc_message *message)
{
	if (message->held != FC_HELD_MARKED)
		set_held(parser, message, FC_HELD_MARKED);
}
