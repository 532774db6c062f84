/* The messages of a flow in PSN order: each record has the position of the previous one, the flow
 * that of the last one. */
#include "fc_qp_owner.h"

struct fc_neighbours fc_message_list_find(const struct fc_flows *flows, const struct fc_flow *flow,
					  uint64_t psn)
{
	struct fc_neighbours near = { 0 };
	uint64_t position = flow->last_message;

	while (position) {
		struct fc_message *message = fc_message_at(flows, position);
		if (!message) {
			near.forgotten = true;
			break;
		}
		if (psn >= message->first_psn) {
			if (psn < fc_message_stop(message))
				near.at = message;
			else
				near.before = message;
			break;
		}
		near.after = message;
		position = fc_jump_before(flows, message, psn);
	}
	return near;
}

/* Number of the owner's memory keys that are stored. */
static uint64_t keys_kept(const struct fc_flow *flow)
{
	return flow->rkeys_ever < FC_FLOW_KEYS ? flow->rkeys_ever : FC_FLOW_KEYS;
}

bool fc_message_list_foreign_rkey(const struct fc_flows *flows, const struct fc_flow *flow,
				  uint32_t rkey)
{
	const struct fc_message *message = fc_message_at(flows, flow->last_message);
	const uint64_t known = keys_kept(flow);

	for (uint64_t i = 0; i < known; i++)
		if (flow->rkeys[i] == rkey)
			return false;
	if (flow->rkeys_ever <= FC_FLOW_KEYS)
		return known;
	for (int hops = 0; message && hops < 256; hops++) {
		if (message->flags & FC_MESSAGE_RETH && message->length_bytes &&
		    message->rkey == rkey && message->standing != FC_STANDING_UNPROVEN)
			return false;
		message = fc_message_at(flows, message->previous);
	}
	return true;
}

/* Stores the key of a trusted message as a key of the flow's owner. */
static void remember_key(struct fc_flow *flow, uint32_t rkey)
{
	for (uint64_t i = 0; i < keys_kept(flow); i++)
		if (flow->rkeys[i] == rkey)
			return;
	flow->rkeys[flow->rkeys_ever++ % FC_FLOW_KEYS] = rkey;
}

/* Removes a key that turned out to be wrong. */
static void forget_key(struct fc_flow *flow, uint32_t rkey)
{
	const uint64_t known = keys_kept(flow);

	for (uint64_t i = 0; i < known; i++)
		if (flow->rkeys[i] == rkey)
			flow->rkeys[i] = flow->rkeys[(i + 1) % known];
}

/* Whether the packet is the second half of a send in NCCL's form for adaptive routing: the data
 * came before as a plain write (NCCL src/transport/net_ib, ncclIbMultiSend). */
static bool closes(const struct fc_packet *p)
{
	return p->opcode == FC_RC_WRITE_ONLY_IMM && !p->length_bytes && !p->va && !p->rkey;
}

/* Message number after `number`: a closing write has the number of the write that it closes. */
static uint64_t number_after(uint64_t number, uint8_t flags)
{
	return number + !(flags & FC_MESSAGE_CLOSING);
}

/* Sets the run of messages that the message continues or begins, and its position in it. */
static void count_run(const struct fc_flow *flow, const struct fc_neighbours *near,
		      struct fc_message *message)
{
	const bool next = !near->after && flow->run_next && fc_is_write(message->opcode) &&
			  message->first_psn == flow->expected_psn;

	message->run_psn = next ? flow->run_psn : message->first_psn;
	message->nth = next ? number_after(flow->run_next - 1, message->flags) : 0;
}

struct fc_message *fc_message_list_insert(struct fc_arrival *a, const struct fc_neighbours *near,
					  uint64_t first_psn, uint32_t packets)
{
	struct fc_flows *flows = a->parser->flows;
	const uint64_t position = fc_message_pool_next(a->parser);
	struct fc_message *message = &flows->messages[position & flows->mask];

	fc_touch_flow_rest(a->parser, a->flow);
	fc_touch_message(a->parser, message);
	__atomic_store_n(&message->position, 0, __ATOMIC_RELAXED);
	/* A reader that sees any part of the new record also sees that the old one is gone: pairs
	 * with the acquire fence in fc_flows_message(). */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memset(&message->previous, 0, sizeof *message - sizeof message->position);
	message->first_psn = first_psn;
	message->packets = packets;
	message->number = FC_NUMBER_UNKNOWN;
	message->flow = (uint32_t)(a->flow - flows->flows);
	message->pmtu_bytes = a->flow->pmtu_bytes;
	message->first_ns = a->now_ns;
	message->last_ns = a->now_ns;
	message->opcode = a->packet->opcode;
	message->previous = near->before ? near->before->position : 0;
	message->flags = closes(a->packet) ? FC_MESSAGE_CLOSING : 0;
	/* A queue pair in error sends what is in flight and ends. This one still sends, so it was
	 * not refused. */
	if (a->flow->refused_psn && a->flow->next_psn > a->flow->refused_next + FC_PSN_FAR)
		a->flow->refused_psn = 0;
	if (fc_stops_beyond_refusal(a->flow, message)) {
		message->flags |= FC_MESSAGE_REFUSED;
		a->parser->counters.refused_messages++;
	}
	message->standing = a->standing & 0xf;
	if (a->packet->flags & FC_PACKET_RETH && a->packet->length_bytes &&
	    a->standing != FC_STANDING_UNPROVEN)
		remember_key(a->flow, a->packet->rkey);
	count_run(a->flow, near, message);
	/* If no record shows what came before, only a message with a known key continues the
	 * count. */
	if ((near->before || a->standing != FC_STANDING_UNPROVEN) && !near->after &&
	    fc_is_write(message->opcode) && a->flow->messages &&
	    first_psn == a->flow->expected_psn && a->flow->next_number != FC_NUMBER_UNKNOWN &&
	    a->flow->next_number) {
		message->number = number_after(a->flow->next_number - 1, message->flags);
		message->flags |= a->flow->next_counted ? FC_MESSAGE_COUNTED : 0;
	}
	if (!near->before && !near->after)
		message->previous = a->flow->last_message; /* 0, or already overwritten */
	if (near->after) {
		fc_touch_message(a->parser, near->after);
		near->after->previous = position;
	} else {
		a->flow->last_message = position;
	}
	fc_jump_set(flows, position, near->before);
	if (a->standing != FC_STANDING_UNPROVEN && fc_message_stop(message) > a->flow->expected_psn)
		a->flow->expected_psn = fc_message_stop(message);
	a->flow->messages++;
	FC_STORE_RELEASE(&flows->header->messages_made, position);
	/* written last: pairs with fc_flows_message() */
	FC_STORE_RELEASE(&message->position, position);
	return message;
}

/* The number of `message` by its line flag, if flag minus number is equal in the two nearest
 * earlier messages that have both. Each lost message between took at least one PSN, so the count
 * cannot grow faster than the PSN. */
static uint64_t number_by_flag(const struct fc_flows *flows, const struct fc_message *message)
{
	const struct fc_message *known[2] = { NULL, NULL };
	const struct fc_message *walk = fc_message_at(flows, message->previous);

	if (!(message->flags & FC_MESSAGE_LINE_FLAG))
		return FC_NUMBER_UNKNOWN;
	for (int hops = 0, n = 0; walk && hops < 16 && n < 2; hops++) {
		if (walk->number != FC_NUMBER_UNKNOWN && walk->flags & FC_MESSAGE_LINE_FLAG)
			known[n++] = walk;
		walk = fc_message_at(flows, walk->previous);
	}
	if (!known[1])
		return FC_NUMBER_UNKNOWN;
	const struct fc_message *nearest = known[0];
	const uint32_t between = nearest->line_flag - known[1]->line_flag;
	if (between != (uint32_t)(nearest->number - known[1]->number))
		return FC_NUMBER_UNKNOWN;
	const uint32_t ahead = message->line_flag - nearest->line_flag;
	const uint64_t room = message->first_psn - fc_message_stop(nearest) + 1;
	return ahead >= 1 && ahead <= room ? nearest->number + ahead : FC_NUMBER_UNKNOWN;
}

/* Adds the message to the run of the previous record if nothing is missing between them. */
static bool join_run(const struct fc_message *before, struct fc_message *message)
{
	if (!before || before->kind != FC_KIND_WRITE ||
	    fc_message_stop(before) != message->first_psn)
		return false;
	const uint64_t nth = number_after(before->nth, message->flags);
	const bool moved = message->run_psn != before->run_psn || message->nth != nth;
	message->run_psn = before->run_psn;
	message->nth = nth;
	return moved;
}

/* Sets number, whether it is a count, and position in the run, from the previous record or the
 * line flag. Returns whether any of them changed. */
static bool number_one(const struct fc_flows *flows, const struct fc_flow *flow,
		       struct fc_message *message)
{
	const struct fc_message *before = fc_message_at(flows, message->previous);
	uint64_t number = FC_NUMBER_UNKNOWN;
	uint8_t counted = 0;

	if (message->kind != FC_KIND_WRITE)
		return false;
	const bool moved = join_run(before, message);
	if (!before && message->previous == 0 && message->first_psn == FC_PSN_ORIGIN &&
	    flow->first_psn >= FC_PSN_ORIGIN) {
		number = 0;
		counted = FC_MESSAGE_COUNTED;
	} else if (before && fc_message_stop(before) == message->first_psn &&
		   before->number != FC_NUMBER_UNKNOWN) {
		number = number_after(before->number, message->flags);
		counted = before->flags & FC_MESSAGE_COUNTED;
	} else {
		number = number_by_flag(flows, message);
	}
	if (number == FC_NUMBER_UNKNOWN ||
	    (message->number == number && (message->flags & FC_MESSAGE_COUNTED) == counted) ||
	    message->flags & FC_MESSAGE_COUNTED)
		return moved;
	message->number = number;
	message->flags |= counted;
	return true;
}

static void number_from(struct fc_arrival *a, struct fc_message *message)
{
	struct fc_flows *flows = a->parser->flows;
	struct fc_message *later[FC_RENUMBER_MAX];
	int count = 0;

	/* A late message can give numbers to the messages after it. */
	if (!number_one(flows, a->flow, message) && a->flow->last_message == message->position)
		return;
	for (uint64_t position = a->flow->last_message; position != message->position; count++) {
		struct fc_message *behind = fc_message_at(flows, position);
		/* With too many messages after it, those keep their numbers. */
		if (!behind || count == FC_RENUMBER_MAX)
			return;
		later[count] = behind;
		position = behind->previous;
	}
	while (count-- > 0) {
		fc_touch_message(a->parser, later[count]);
		if (!number_one(flows, a->flow, later[count]))
			return;
	}
}

/* Sets what the message after `last`, the flow's last message, starts with. */
static void go_on_after(struct fc_flow *flow, const struct fc_message *last)
{
	const bool known = last->number != FC_NUMBER_UNKNOWN;

	flow->next_number = known ? last->number + 1 : FC_NUMBER_UNKNOWN;
	flow->next_counted = known && last->flags & FC_MESSAGE_COUNTED;
	flow->run_psn = last->run_psn;
	flow->run_next = last->kind == FC_KIND_WRITE ? last->nth + 1 : 0;
}

/* The last message of a flow that is not unproven; NULL: none among the nearest ones. */
static const struct fc_message *last_believed(const struct fc_flows *flows,
					      const struct fc_flow *flow)
{
	const struct fc_message *last = fc_message_at(flows, flow->last_message);

	for (int hops = 0; last && last->standing == FC_STANDING_UNPROVEN; hops++)
		last = hops < FC_WITHDRAWN_MAX ? fc_message_at(flows, last->previous) : NULL;
	return last;
}

void fc_message_list_number(struct fc_arrival *a, struct fc_message *message)
{
	number_from(a, message);
	const struct fc_message *last = last_believed(a->parser->flows, a->flow);
	if (!last || fc_message_stop(last) != a->flow->expected_psn)
		return;
	fc_touch_flow_rest(a->parser, a->flow);
	go_on_after(a->flow, last);
}

static void unlink_message(struct fc_arrival *a, struct fc_message *message)
{
	struct fc_flows *flows = a->parser->flows;
	struct fc_message *behind = fc_message_list_find(flows, a->flow, message->first_psn).after;

	if (a->flow->last_message == message->position) {
		fc_touch_flow_rest(a->parser, a->flow);
		a->flow->last_message = message->previous;
	} else if (behind && behind->previous == message->position) {
		fc_touch_message(a->parser, behind);
		behind->previous = message->previous;
	}
	fc_jump_forget(flows, message);
}

void fc_message_list_withdraw(struct fc_arrival *a, struct fc_message *message)
{
	struct fc_flow *flow = a->flow;

	fc_touch_flow_rest(a->parser, flow);
	fc_touch_message(a->parser, message);
	unlink_message(a, message);
	fc_psns_unsee(a->parser, flow, message->first_psn, fc_message_stop(message));
	if (message->standing == FC_STANDING_FRESH && message->length_bytes)
		forget_key(flow, message->rkey);
	message->standing = FC_STANDING_UNPROVEN;
	message->number = FC_NUMBER_UNKNOWN;
	message->flags &= (uint8_t)~FC_MESSAGE_COUNTED;
	message->packets_seen = 0;
	if (flow->expected_psn != fc_message_stop(message))
		return;
	const struct fc_message *last = last_believed(a->parser->flows, flow);
	flow->expected_psn = last ? fc_message_stop(last) : message->first_psn;
	flow->next_number = FC_NUMBER_UNKNOWN;
	flow->next_counted = 0;
	flow->run_next = 0;
	if (last)
		go_on_after(flow, last);
}

void fc_message_list_remove(struct fc_arrival *a, struct fc_message *message)
{
	unlink_message(a, message);
	fc_touch_message(a->parser, message);
	message->packets = 0;
	message->length_bytes = 0;
}
