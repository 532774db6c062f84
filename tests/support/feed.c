/* For tests: sends frames into a port of this process, cut into segments as asked.
 * net_ring hands back what is sent into it. Loaded beside the capture module, it
 * shares that one's DPDK. */
#include <stdint.h>
#include <string.h>

#include <rte_ethdev.h>
#include <rte_mbuf.h>

static struct rte_mbuf *segment(struct rte_mempool *pool, const uint8_t *bytes, uint32_t count)
{
	struct rte_mbuf *part;

	while (!(part = rte_pktmbuf_alloc(pool)))
		;
	memcpy(rte_pktmbuf_append(part, (uint16_t)count), bytes, count);
	return part;
}

/* Frames lie one behind the other in `bytes`; no segment is longer than `limit`. */
int feed(uint16_t port, const char *pool_name, const uint8_t *bytes, const uint32_t *lengths,
	 uint32_t frames, uint32_t limit)
{
	struct rte_mempool *pool = rte_mempool_lookup(pool_name);

	if (!pool)
		return -1;
	for (uint32_t i = 0; i < frames; i++) {
		struct rte_mbuf *frame = NULL;

		for (uint32_t at = 0; at < lengths[i]; at += limit) {
			const uint32_t left = lengths[i] - at;
			struct rte_mbuf *part =
				segment(pool, bytes + at, left < limit ? left : limit);

			if (!frame)
				frame = part;
			else if (rte_pktmbuf_chain(frame, part) < 0)
				return -2;
		}
		while (!rte_eth_tx_burst(port, 0, &frame, 1))
			;
		bytes += lengths[i];
	}
	return 0;
}
