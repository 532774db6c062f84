/* Packets of one flow that arrive in several rings: what the extractor of one ring knows places
 * packets and messages of another ring. */
#include "fc_extract.h"
#include "fc_staging_ops.h"

/* Messages to walk back from a flow's last one before the search is given up: the largest distance
 * between two rings. */
#define HOPS_MAX 4096

/* Finds the last message of `flow` that starts at or before `psn`. The parser is another process
 * and runs meanwhile, so each record is read as a checked copy. */
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

int fc_deliver_from_ring(struct fc_extractor *x, uint32_t flow, uint64_t psn,
			 const uint8_t *payload, uint32_t payload_bytes, int differs)
{
	const struct fc_packet_payload piece = { flow, psn, payload, payload_bytes };
	struct fc_message m;

	if (!find_message(x, flow, psn, &m))
		return 0;
	const uint64_t nth = psn - m.first_psn;
	const struct fc_placement *placement =
		&x->staging->placements[m.position & x->staging->mask];
	if (fc_bytes_of_packet(&m, nth) != payload_bytes || placement->position != m.position)
		return 0;
	fc_change_begin(x);
	fc_deliver_orphan(x, placement, &m, &piece, differs != 0);
	fc_change_end(x);
	return 1;
}

void fc_orphan_delivered(struct fc_extractor *x, uint64_t orphan)
{
	fc_change_begin(x);
	fc_orphan_release(x, orphan);
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

uint64_t fc_number_before(const struct fc_extractor *x, uint32_t flow, uint64_t psn, uint64_t *stop)
{
	struct fc_message m;

	for (int hops = 0; hops < HOPS_MAX && psn && find_message(x, flow, psn - 1, &m); hops++) {
		if (m.number != FC_NUMBER_UNKNOWN) {
			*stop = m.first_psn + m.packets;
			return m.number + 1;
		}
		psn = m.first_psn;
	}
	return FC_NUMBER_UNKNOWN;
}
