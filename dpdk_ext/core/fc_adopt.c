/* One flow's packets over several rings: what one ring's extractor knows serves
 * packets and messages of another's. */
#include "fc_extract.h"
#include "fc_staging_ops.h"

/* Messages walked back from a flow's last: as many as rings are apart at most
 * before what is asked for is given up. */
#define HOPS_MAX 4096

/* The last message of `flow` that starts at or before `psn`. The parser is another
 * process and goes on meanwhile, so every record is a checked copy. */
static bool find_message(const struct fc_extractor *x, uint32_t flow, uint64_t psn,
			 struct fc_message *m)
{
	if (flow >= FC_FLOWS_MAX)
		return false;
	uint64_t position = __atomic_load_n(&x->flows->flows[flow].last_message, __ATOMIC_ACQUIRE);
	for (int hops = 0; hops < HOPS_MAX && position; hops++) {
		if (!fc_flows_message(x->flows, position, m) || m->flow != flow)
			return false;
		if (m->first_psn <= psn) {
			fc_number_in_run(&x->staging->plans[flow], m);
			return true;
		}
		position = m->previous;
	}
	return false;
}

int fc_adopt_packet(struct fc_extractor *x, uint32_t flow, uint64_t psn, const uint8_t *payload,
		    uint32_t payload_bytes, int differs)
{
	const struct fc_piece piece = { flow, psn, payload, payload_bytes };
	struct fc_message m;

	if (!find_message(x, flow, psn, &m))
		return 0;
	const uint64_t nth = psn - m.first_psn;
	const struct fc_home *home = &x->staging->homes[m.position & x->staging->mask];
	if (fc_bytes_of_packet(&m, nth) != payload_bytes || home->position != m.position)
		return 0;
	fc_change_begin(x);
	fc_home_deliver_held(x, home, &m, &piece, differs != 0);
	fc_change_end(x);
	return 1;
}

void fc_adopted(struct fc_extractor *x, uint64_t held)
{
	fc_change_begin(x);
	fc_held_release(x, held);
	fc_change_end(x);
}

uint64_t fc_number_at(const struct fc_extractor *x, uint32_t flow, uint64_t psn, int closing)
{
	struct fc_message m;

	if (find_message(x, flow, psn, &m) && m.first_psn == psn && m.number != FC_NUMBER_UNKNOWN)
		return m.number;
	if (!psn || !find_message(x, flow, psn - 1, &m) || m.first_psn + m.packets != psn ||
	    m.number == FC_NUMBER_UNKNOWN)
		return FC_NUMBER_UNKNOWN;
	return m.number + !closing;
}
