#include <errno.h>

#include "fc_error.h"
#include "fc_known_headers.h"
#include "fc_qp_owner.h"

static const uint8_t flows_magic[8] = "FCFLOWS";

_Static_assert(sizeof(struct fc_flows_header) <= 4096, "the header fits its page");
_Static_assert(offsetof(struct fc_flows_header, silent_flows) ==
		       offsetof(struct fc_flows_header, flows_made) + 2 * sizeof(uint64_t),
	       "the counts that a journal begins with lie side by side");
_Static_assert(sizeof(struct fc_flow) == 640 && offsetof(struct fc_flow, last_ns) == 64 &&
		       sizeof(struct fc_message) == 128 &&
		       offsetof(struct fc_message, number) == 64,
	       "what a packet changes lies in one cache line of each record");

/* 2^26 records take 8 GiB, more than any ring needs. */
#define MESSAGES_MAX (1ull << 26)

struct layout {
	uint64_t index, flows, messages, undo, end;
};

static struct layout layout_for(uint64_t messages)
{
	struct layout at = { .index = 4096 };

	at.flows = at.index + FC_INDEX_ENTRIES * sizeof(uint64_t);
	at.messages = at.flows + FC_FLOWS_MAX * sizeof(struct fc_flow);
	at.undo = (at.messages + messages * sizeof(struct fc_message) + 63) & ~63ull;
	at.end = at.undo + FC_UNDO_BYTES;
	return at;
}

static void attach(struct fc_flows *flows)
{
	uint8_t *base = flows->map.base;

	flows->header = (struct fc_flows_header *)base;
	const struct layout at = layout_for(flows->header->messages);
	flows->index = (uint64_t *)(base + at.index);
	flows->flows = (struct fc_flow *)(base + at.flows);
	flows->messages = (struct fc_message *)(base + at.messages);
	flows->undo = base + at.undo;
	flows->mask = flows->header->messages - 1;
}

static bool good_size(uint64_t messages)
{
	return messages >= 4 && messages <= MESSAGES_MAX && !(messages & (messages - 1));
}

int fc_flows_create(const char *path, uint64_t messages, struct fc_flows *out)
{
	memset(out, 0, sizeof *out);
	if (!good_size(messages))
		return fc_fail(EINVAL, FLOW_TABLE_RECORDS_REFUSED,
			       .numbers = { messages, MESSAGES_MAX });
	const struct layout at = layout_for(messages);
	const int code = fc_map_create(path, at.end, &out->map);
	if (code < 0)
		return code;
	struct fc_flows_header *header = (struct fc_flows_header *)out->map.base;
	header->layout_version = FC_LAYOUT_VERSION;
	header->flows_max = FC_FLOWS_MAX;
	header->messages = messages;
	header->file_bytes = out->map.bytes;
	header->index_offset = at.index;
	header->flows_offset = at.flows;
	header->messages_offset = at.messages;
	header->undo_offset = at.undo;
	header->undo_bytes = FC_UNDO_BYTES;
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(header->magic, flows_magic, sizeof flows_magic);
	attach(out);
	return 0;
}

static int check_header(const struct fc_flows_header *header, uint64_t mapped, const char *path)
{
	if (mapped < 4096 || memcmp(header->magic, flows_magic, sizeof flows_magic))
		return fc_fail(EINVAL, NOT_A_FLOW_TABLE, .texts = { path });
	if (header->layout_version != FC_LAYOUT_VERSION)
		return fc_fail(EPROTO, OTHER_LAYOUT_VERSION, .texts = { path },
			       .numbers = { header->layout_version, FC_LAYOUT_VERSION });
	if (header->flows_max != FC_FLOWS_MAX || !good_size(header->messages) ||
	    header->file_bytes != mapped || layout_for(header->messages).end > mapped ||
	    header->flows_used > FC_FLOWS_MAX || header->flows_made > header->flows_used)
		return fc_fail(EINVAL, SIZES_CONTRADICT, .texts = { path }, .numbers = { mapped });
	return 0;
}

int fc_flows_open(const char *path, int writable, struct fc_flows *out)
{
	memset(out, 0, sizeof *out);
	int code = fc_map_open(path, writable, &out->map);
	if (code < 0)
		return code;
	code = check_header((const struct fc_flows_header *)out->map.base, out->map.bytes, path);
	if (code < 0) {
		fc_map_close(&out->map);
		return code;
	}
	attach(out);
	return 0;
}

void fc_flows_close(struct fc_flows *flows)
{
	fc_map_close(&flows->map);
	memset(flows, 0, sizeof *flows);
}

uint64_t fc_flows_used(const struct fc_flows *flows)
{
	return FC_LOAD_ACQUIRE(&flows->header->flows_used);
}

uint64_t fc_flows_messages_made(const struct fc_flows *flows)
{
	return FC_LOAD_ACQUIRE(&flows->header->messages_made);
}

int fc_flows_message(const struct fc_flows *flows, uint64_t position, struct fc_message *out)
{
	const struct fc_message *message = &flows->messages[position & flows->mask];

	/* pairs with the release in fc_message_list_insert() */
	if (position == 0 || FC_LOAD_ACQUIRE(&message->position) != position)
		return 0;
	*out = *message;
	/* pairs with the release fence there: no later record was read */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return FC_LOAD_ACQUIRE(&message->position) == position;
}

/* The addresses as words; each word is read as it was written. */
static inline void key_words(const struct fc_flow_key *key, uint64_t words[5])
{
	memcpy(words, key->source, 16);
	memcpy(words + 2, key->destination, 16);
	words[4] = (uint64_t)key->partition << 32 | key->dest_qp;
}

/* Odd constants of splitmix64 and similar; the quality of the hash affects only speed. */
uint64_t fc_key_hash(const struct fc_flow_key *key)
{
	uint64_t words[5];

	key_words(key, words);
	uint64_t hash = words[0] * 0xbf58476d1ce4e5b9ull + words[1] * 0x94d049bb133111ebull +
			words[2] * 0x9e3779b97f4a7c15ull + words[3] * 0xff51afd7ed558ccdull +
			words[4] * 0xc4ceb9fe1a85ec53ull;
	hash ^= hash >> 29;
	return hash * 0xbf58476d1ce4e5b9ull;
}

static bool key_equal(const struct fc_flow_key *a, const struct fc_flow_key *b)
{
	uint64_t x[5], y[5];

	key_words(a, x);
	key_words(b, y);
	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3]) | (x[4] ^ y[4]));
}

/* The index entry of `key`, or the empty one where it belongs. At most half of the entries are
 * used. */
static uint64_t *index_entry(struct fc_flows *flows, const struct fc_flow_key *key, uint64_t hash)
{
	uint64_t at = hash >> 32;

	for (;; at++) {
		uint64_t *entry = &flows->index[at & (FC_INDEX_ENTRIES - 1)];
		const uint32_t flow = (uint32_t)*entry - 1;
		if (*entry == 0 || (*entry >> 32 == hash >> 32 && flow < FC_FLOWS_MAX &&
				    key_equal(&flows->flows[flow].key, key)))
			return entry;
	}
}

/* The first owner in the key's first network, or NULL. */
static struct fc_flow *head_of(struct fc_flows *flows, const struct fc_flow_key *key, uint64_t hash)
{
	const uint64_t entry = *index_entry(flows, key, hash);

	return entry ? &flows->flows[(uint32_t)entry - 1] : NULL;
}

struct fc_flow *fc_flow_find(struct fc_flows *flows, const struct fc_packet *p, uint64_t hash)
{
	const uint64_t entry = flows->index[hash >> 32 & (FC_INDEX_ENTRIES - 1)];
	const uint32_t flow = (uint32_t)entry - 1;

	/* That the key stands where its hash says is so common that it is asked first. */
	if (FC_LIKELY(entry >> 32 == hash >> 32 && flow < FC_FLOWS_MAX) &&
	    FC_LIKELY(key_equal(&flows->flows[flow].key, &p->key) &&
		      flows->flows[flow].network == p->network))
		return &flows->flows[flow];
	struct fc_flow *head = head_of(flows, &p->key, hash);

	return FC_LIKELY(!head || head->network == p->network)
		       ? head
		       : fc_network_find(flows, head, p->network);
}

/* Sets the first cache line of a record. Readers may have it from a parser that was killed, so it
 * is written only where it differs. */
static void name_flow(const struct fc_arrival *a, struct fc_flow *flow, uint32_t incarnation)
{
	const struct fc_flow named = {
		.key = a->packet->key,
		.incarnation = incarnation,
		.udp_source_port = a->packet->udp_source_port,
	};

	if (memcmp(flow, &named, offsetof(struct fc_flow, next_network)) != 0)
		memcpy(flow, &named, offsetof(struct fc_flow, next_network));
	flow->next_network = 0;
	flow->first_ns = a->now_ns;
	flow->network = 0;
}

struct fc_flow *fc_flow_make(struct fc_arrival *a, uint32_t incarnation)
{
	struct fc_parser *parser = a->parser;
	struct fc_flows *flows = parser->flows;
	const uint64_t used = flows->header->flows_made;
	const bool silent = !fc_is_of_message(a->packet);

	if (silent &&
	    (used >= FC_FLOWS_MAX || flows->header->silent_flows >= FC_SILENT_FLOWS_MAX)) {
		parser->counters.flowless_packets++;
		return NULL;
	}
	if (used >= FC_FLOWS_MAX) {
		parser->counters.flow_table_full_packets++;
		return NULL;
	}
	struct fc_flow *flow = &flows->flows[used];
	uint64_t *entry = index_entry(flows, &a->packet->key, a->hash);
	fc_touch_flow_packet(parser, flow);
	fc_touch_holes(parser, flow);
	fc_journal(parser, entry, sizeof *entry);
	name_flow(a, flow, incarnation);
	memset(&flow->last_ns, 0, sizeof *flow - offsetof(struct fc_flow, last_ns));
	flow->owners_made = 1;
	if (silent) {
		flow->owner = FC_OWNER_SILENT;
		flows->header->silent_flows++;
	}
	if (!*entry) /* else: another owner of an existing key */
		*entry = a->hash >> 32 << 32 | (used + 1);
	flows->header->flows_made = used + 1;
	if (flows->header->flows_used < used + 1) /* pairs with fc_flows_used() */
		FC_STORE_RELEASE(&flows->header->flows_used, used + 1);
	return flow;
}

struct fc_flow *fc_flow_find_or_make(struct fc_arrival *a)
{
	struct fc_flow *flow = a->flow;

	/* Whether packets just before this one may have changed the first owner or its position. */
	if (FC_UNLIKELY(!flow || flow->owner & FC_OWNER_SEVERAL ||
			flow->network != a->packet->network))
		flow = fc_flow_find(a->parser->flows, a->packet, a->hash);
	if (FC_UNLIKELY(!flow)) {
		struct fc_flow *head = head_of(a->parser->flows, &a->packet->key, a->hash);
		if (head)
			return fc_network_choose(a, head);
		flow = fc_flow_make(a, 0);
		if (!flow)
			return NULL;
	}
	fc_touch_flow_packet(a->parser, flow);
	if (FC_UNLIKELY(!flow->network))
		fc_network_note(a, flow);
	return flow;
}

struct fc_flow *fc_owner_after(const struct fc_flows *flows, const struct fc_flow *flow)
{
	const uint32_t next = flow->next_owner;

	return next && next <= FC_FLOWS_MAX ? &flows->flows[next - 1] : NULL;
}

void fc_owner_drop(struct fc_parser *parser, struct fc_flow *before, struct fc_flow *dropped)
{
	fc_touch_flow_rest(parser, before);
	fc_touch_flow_rest(parser, dropped);
	fc_touch_flow_packet(parser, dropped);
	before->next_owner = dropped->next_owner;
	dropped->next_owner = 0;
	dropped->retired = 1;
	dropped->owner &= (uint8_t)~FC_OWNER_SEVERAL;
	/* It may have been found as the first owner for packets that are looked at ahead. */
	memset(parser->found, 0, sizeof parser->found);
	fc_known_forget(parser->known);
}

/* Removes from the list of `first` the other owner with the fewest packets. */
static void drop_weakest(struct fc_parser *parser, struct fc_flow *first)
{
	struct fc_flow *before = first, *weakest = NULL, *before_weakest = NULL;

	for (struct fc_flow *o; (o = fc_owner_after(parser->flows, before)); before = o)
		if (!weakest || o->write_packets <= weakest->write_packets) {
			weakest = o;
			before_weakest = before;
		}
	if (weakest)
		fc_owner_drop(parser, before_weakest, weakest);
}

struct fc_flow *fc_flow_reincarnate(struct fc_arrival *a)
{
	struct fc_flows *flows = a->parser->flows;
	struct fc_flow *head = head_of(flows, &a->packet->key, a->hash);
	struct fc_flow *first = a->list, *last = first;
	int owners = 1;

	for (struct fc_flow *o; (o = fc_owner_after(flows, last)); last = o)
		owners++;
	if (owners == FC_OWNERS_MAX) {
		drop_weakest(a->parser, first);
		for (last = first; last->next_owner; last = fc_owner_after(flows, last))
			continue;
	}
	struct fc_flow *flow = fc_flow_make(a, (uint32_t)head->owners_made);
	if (flow) {
		fc_touch_flow_packet(a->parser, first);
		fc_touch_flow_rest(a->parser, first);
		fc_touch_flow_rest(a->parser, head);
		fc_touch_flow_rest(a->parser, last);
		first->owner |= FC_OWNER_SEVERAL;
		flow->owner |= FC_OWNER_SEVERAL;
		head->owners_made++;
		last->next_owner = (uint32_t)(flow - flows->flows) + 1;
		a->parser->counters.incarnations++;
	}
	return flow;
}

void fc_owner_first(struct fc_arrival *a, struct fc_flow *before, struct fc_flow *flow)
{
	struct fc_flows *flows = a->parser->flows;
	uint64_t *entry = index_entry(flows, &a->packet->key, a->hash);
	struct fc_flow *head = &flows->flows[(uint32_t)*entry - 1];
	struct fc_flow *first = a->list;

	fc_touch_flow_rest(a->parser, before);
	fc_touch_flow_rest(a->parser, flow);
	before->next_owner = flow->next_owner;
	flow->next_owner = (uint32_t)(first - flows->flows) + 1;
	flow->owners_made = first->owners_made;
	fc_network_first(a, head, first, flow);
	if (first != head)
		return;
	fc_journal(a->parser, entry, sizeof *entry);
	*entry = a->hash >> 32 << 32 | ((uint64_t)(flow - flows->flows) + 1);
}

void fc_undo_begin(struct fc_parser *parser, uint64_t position)
{
	struct fc_flows_header *header = parser->flows->header;

	header->undo_base_position = position;
	if (++parser->epoch == 0) {
		memset(parser->flow_epochs, 0, sizeof parser->flow_epochs);
		memset(parser->message_epochs, 0,
		       header->messages * sizeof *parser->message_epochs);
		parser->epoch = 1;
	}
	/* flows_made, messages_made, silent_flows, held_messages */
	fc_journal(parser, &header->flows_made, 4 * sizeof(uint64_t));
}

void fc_undo_end(struct fc_flows *flows)
{
	FC_STORE_RELEASE(&flows->header->undo_used_bytes, 0);
}

/* The journal entry that ends at `used`: the old bytes; NULL: not a valid entry. */
static const uint8_t *undo_entry(const struct fc_flows *flows, uint64_t used,
				 struct fc_undo_tail *tail)
{
	if (used < sizeof *tail)
		return NULL;
	memcpy(tail, flows->undo + used - sizeof *tail, sizeof *tail);
	const uint64_t room = used - sizeof *tail;
	if (tail->bytes > room || ((tail->bytes + 7) & ~7ull) > room ||
	    tail->offset > flows->map.bytes || tail->bytes > flows->map.bytes - tail->offset)
		return NULL;
	return flows->undo + room - ((tail->bytes + 7) & ~7ull);
}

int fc_undo_roll_back(struct fc_flows *flows, uint64_t parsed)
{
	struct fc_flows_header *header = flows->header;
	uint64_t used = header->undo_used_bytes;

	if (used > FC_UNDO_BYTES)
		return fc_fail(EINVAL, FLOW_TABLE_JOURNAL_TORN);
	/* Latest first: a record that was changed twice in a span gets its oldest value. If killed
	 * here, the next parser starts again at the end, with the same result. */
	while (header->undo_base_position == parsed && used) {
		struct fc_undo_tail tail;
		const uint8_t *before = undo_entry(flows, used, &tail);
		if (!before)
			return fc_fail(EINVAL, FLOW_TABLE_JOURNAL_TORN);
		memcpy(flows->map.base + tail.offset, before, tail.bytes);
		used = (uint64_t)(before - flows->undo);
	}
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	fc_undo_end(flows);
	return 0;
}
