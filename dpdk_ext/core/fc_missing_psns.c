/* Missing PSNs of a flow: an ascending list of ranges below next_psn. The list is short; ranges
 * that no longer fit are only counted. */
#include "fc_flow_ops.h"

bool fc_psn_is_missing(const struct fc_flow *flow, uint64_t psn)
{
	return fc_psns_missing_in(flow, psn, psn + 1) != 0;
}

/* Everything outside [first_psn, next_psn) also counts as missing. */
uint64_t fc_psns_missing_in(const struct fc_flow *flow, uint64_t start, uint64_t stop)
{
	uint64_t missing = 0;

	if (flow->next_psn == 0)
		return stop - start;
	if (start < flow->first_psn) {
		const uint64_t end = stop < flow->first_psn ? stop : flow->first_psn;
		missing += end - start;
		start = end;
	}
	if (stop > flow->next_psn) {
		const uint64_t begin = start > flow->next_psn ? start : flow->next_psn;
		missing += stop - begin;
		stop = begin;
	}
	for (uint64_t i = 0; i < flow->holes_used && start < stop; i++) {
		const struct fc_psn_range *hole = &flow->holes[i];
		const uint64_t from = hole->start > start ? hole->start : start;
		const uint64_t to = hole->stop < stop ? hole->stop : stop;
		if (from < to)
			missing += to - from;
	}
	return missing;
}

static void remove_hole(struct fc_flow *flow, uint64_t at)
{
	flow->holes_used--;
	memmove(&flow->holes[at], &flow->holes[at + 1],
		(flow->holes_used - at) * sizeof flow->holes[0]);
}

/* Inserts a range; if the list is full the oldest range is dropped. */
static void add_hole(struct fc_flow *flow, uint64_t start, uint64_t stop)
{
	if (flow->holes_used == FC_FLOW_HOLES) {
		if (start < flow->holes[0].start) {
			flow->lost_holes += stop - start;
			return;
		}
		flow->lost_holes += flow->holes[0].stop - flow->holes[0].start;
		remove_hole(flow, 0);
	}
	uint64_t at = flow->holes_used;
	while (at > 0 && flow->holes[at - 1].start > start)
		at--;
	memmove(&flow->holes[at + 1], &flow->holes[at],
		(flow->holes_used - at) * sizeof flow->holes[0]);
	flow->holes[at] = (struct fc_psn_range){ start, stop };
	flow->holes_used++;
}

/* Removes [start, stop) from the list; false: nothing of it was listed. */
static bool fill(struct fc_flow *flow, uint64_t start, uint64_t stop)
{
	bool found = false;

	for (uint64_t i = flow->holes_used; i-- > 0;) {
		struct fc_psn_range *hole = &flow->holes[i];
		if (hole->stop <= start)
			break;
		if (hole->start >= stop)
			continue;
		found = true;
		const struct fc_psn_range was = *hole;
		if (was.start < start && stop < was.stop) {
			hole->stop = start;
			add_hole(flow, stop, was.stop);
			break;
		}
		if (was.start < start)
			hole->stop = start;
		else if (stop < was.stop)
			hole->start = stop;
		else
			remove_hole(flow, i);
	}
	return found;
}

void fc_psns_unsee(struct fc_parser *parser, struct fc_flow *flow, uint64_t start, uint64_t stop)
{
	start = start > flow->first_psn ? start : flow->first_psn;
	stop = stop < flow->next_psn ? stop : flow->next_psn;
	if (start >= stop)
		return;
	fc_touch_holes(parser, flow);
	(void)fill(flow, start, stop);
	add_hole(flow, start, stop);
}

bool fc_psns_see(struct fc_parser *parser, struct fc_flow *flow, uint64_t start, uint64_t stop)
{
	if (flow->next_psn == 0) {
		fc_touch_flow_rest(parser, flow);
		flow->first_psn = start;
		flow->next_psn = stop;
		return true;
	}
	if (FC_LIKELY(start == flow->next_psn)) {
		flow->next_psn = stop;
		return true;
	}
	fc_touch_holes(parser, flow);
	if (start > flow->next_psn) {
		/* Gaps do not matter in a flow without messages. */
		if (flow->has_writes || flow->has_sends)
			add_hole(flow, flow->next_psn, start);
		flow->next_psn = stop;
		return true;
	}
	if (start < flow->first_psn) {
		if (stop < flow->first_psn)
			add_hole(flow, stop, flow->first_psn);
		flow->first_psn = start;
		if (stop > flow->next_psn)
			flow->next_psn = stop;
		return true;
	}
	bool found = fill(flow, start, stop);
	if (stop > flow->next_psn) {
		flow->next_psn = stop;
		found = true;
	}
	return found;
}
