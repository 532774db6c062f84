#include "fc_port.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_mbuf.h>

#include "fc_eal.h"
#include "fc_error.h"

enum { MBUF_CACHE = 256 };

/* Names of all ports, or "none", for error messages. */
static void list_ports(char *out, size_t room)
{
	size_t used = 0;
	uint16_t id;

	snprintf(out, room, "none");
	RTE_ETH_FOREACH_DEV(id)
	{
		char name[RTE_ETH_NAME_MAX_LEN];

		if (rte_eth_dev_get_name_by_port(id, name) < 0 || used + sizeof name > room)
			continue;
		used += (size_t)snprintf(out + used, room - used, "%s%s", used ? ", " : "", name);
	}
}

/* Looks the port up by name: if the probe of a vdev fails the EAL starts nevertheless, without its
 * port. */
static int find_port(const char *name, uint16_t *id)
{
	char ports[160], why[256];

	if (rte_eth_dev_get_port_by_name(name, id) == 0)
		return 0;
	list_ports(ports, sizeof ports);
	fc_eal_complaints(why, sizeof why);
	if (why[0])
		return fc_fail(ENODEV, PORT_NOT_PROBED, .texts = { name, ports, why });
	return fc_fail(ENODEV, PORT_MISSING, .texts = { name, ports });
}

static void configure(const struct fc_port_request *request, const struct rte_eth_dev_info *dev,
		      struct rte_eth_conf *out)
{
	const uint32_t overhead = RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN;
	const uint32_t mtu = request->frame_bytes_max - RTE_ETHER_HDR_LEN;

	memset(out, 0, sizeof *out);
	/* af_packet refuses an MTU above 1518 bytes, but delivers jumbo frames nevertheless; a
	 * driver that does not support the MTU keeps its default. */
	if (dev->max_rx_pktlen >= mtu + overhead && dev->max_mtu >= mtu)
		out->rxmode.mtu = (uint16_t)mtu;
	if (request->mbuf_room_bytes < request->frame_bytes_max)
		out->rxmode.offloads |= dev->rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER;
	if (request->queues > 1 && dev->flow_type_rss_offloads) {
		out->rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		out->rx_adv_conf.rss_conf.rss_hf =
			dev->flow_type_rss_offloads &
			(RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_TCP);
	}
}

static int setup_queues(const struct fc_port_request *request, uint16_t id,
			struct rte_mempool *pool)
{
	uint16_t rx = request->rx_descriptors, tx = request->rx_descriptors;
	int code = rte_eth_dev_adjust_nb_rx_tx_desc(id, &rx, &tx);

	if (code < 0 && code != -ENOTSUP)
		return fc_fail(-code, PORT_DESCRIPTORS_REFUSED,
			       .texts = { request->name, rte_strerror(-code) }, .numbers = { rx });
	/* Nothing is sent, but drivers expect both kinds of queues. */
	for (uint16_t queue = 0; queue < request->queues; queue++) {
		code = rte_eth_rx_queue_setup(id, queue, rx, SOCKET_ID_ANY, NULL, pool);
		if (code == 0)
			code = rte_eth_tx_queue_setup(id, queue, tx, SOCKET_ID_ANY, NULL);
		if (code < 0)
			return fc_fail(-code, PORT_QUEUE_REFUSED,
				       .texts = { request->name, rte_strerror(-code) },
				       .numbers = { queue, rx, request->mbuf_room_bytes });
	}
	return 0;
}

static int set_promiscuous(const struct fc_port_request *request, struct fc_port *out)
{
	if (request->promiscuous == FC_PROMISCUOUS_BY_SOCKET) {
		out->promiscuous = 1;
		return 0;
	}
	const int code = rte_eth_promiscuous_enable(out->id);

	out->promiscuous = rte_eth_promiscuous_get(out->id) == 1;
	if (out->promiscuous || request->promiscuous != FC_PROMISCUOUS_REQUIRED)
		return 0;
	return fc_fail(code < 0 ? -code : EIO, PORT_NOT_PROMISCUOUS,
		       .texts = { request->name, rte_strerror(code < 0 ? -code : EIO) });
}

static int start(const struct fc_port_request *request, const struct rte_eth_dev_info *dev,
		 struct fc_port *out)
{
	struct rte_eth_conf conf;
	char pool_name[RTE_MEMPOOL_NAMESIZE];
	int code;

	snprintf(pool_name, sizeof pool_name, "fc_port_%u", out->id);
	struct rte_mempool *pool = rte_mempool_lookup(pool_name);
	if (!pool)
		pool = rte_pktmbuf_pool_create(
			pool_name, request->mbufs, MBUF_CACHE, 0,
			(uint16_t)(request->mbuf_room_bytes + RTE_PKTMBUF_HEADROOM), SOCKET_ID_ANY);
	if (!pool)
		return fc_fail(
			rte_errno, PORT_BUFFERS_WITHOUT_MEMORY,
			.texts = { rte_strerror(rte_errno) },
			.numbers = { request->mbufs, request->mbuf_room_bytes,
				     (uint64_t)request->mbufs * request->mbuf_room_bytes >> 20 });
	configure(request, dev, &conf);
	code = rte_eth_dev_configure(out->id, request->queues, request->queues, &conf);
	if (code < 0)
		return fc_fail(-code, PORT_NOT_CONFIGURED,
			       .texts = { request->name, rte_strerror(-code) },
			       .numbers = { request->queues });
	code = setup_queues(request, out->id, pool);
	if (code < 0)
		return code;
	code = rte_eth_dev_start(out->id);
	if (code < 0)
		return fc_fail(-code, PORT_NOT_STARTED,
			       .texts = { request->name, rte_strerror(-code) });
	code = set_promiscuous(request, out);
	if (code < 0)
		(void)rte_eth_dev_stop(out->id);
	return code;
}

int fc_port_open(const struct fc_port_request *request, struct fc_port *out)
{
	struct rte_eth_dev_info dev;

	memset(out, 0, sizeof *out);
	if (request->mbuf_room_bytes + RTE_PKTMBUF_HEADROOM > UINT16_MAX || !request->queues ||
	    request->frame_bytes_max <= RTE_ETHER_HDR_LEN || request->frame_bytes_max > UINT16_MAX)
		return fc_fail(EINVAL, PORT_REQUEST_REFUSED, .texts = { request->name },
			       .numbers = { request->queues, request->mbuf_room_bytes,
					    request->frame_bytes_max });
	int code = find_port(request->name, &out->id);
	if (code < 0)
		return code;
	code = rte_eth_dev_info_get(out->id, &dev);
	if (code < 0)
		return fc_fail(-code, PORT_INFO_NOT_READ,
			       .texts = { request->name, rte_strerror(-code) });
	if (request->queues > dev.max_rx_queues)
		return fc_fail(EINVAL, PORT_QUEUES_TOO_MANY, .texts = { request->name },
			       .numbers = { dev.max_rx_queues, request->queues });
	snprintf(out->name, sizeof out->name, "%s", request->name);
	snprintf(out->driver, sizeof out->driver, "%s", dev.driver_name);
	out->queues = request->queues;
	code = start(request, &dev, out);
	if (code < 0)
		return code;
	struct rte_eth_link link;
	out->link_up = rte_eth_link_get_nowait(out->id, &link) == 0 && link.link_status;
	if (out->link_up && link.link_speed != RTE_ETH_SPEED_NUM_UNKNOWN)
		out->link_mbps = link.link_speed;
	return 0;
}

void fc_port_close(struct fc_port *port, uint32_t leave_promiscuous)
{
	if (port->queues) {
		if (!leave_promiscuous)
			(void)rte_eth_promiscuous_disable(port->id);
		(void)rte_eth_dev_stop(port->id);
		(void)rte_eth_dev_close(port->id);
	}
	memset(port, 0, sizeof *port);
}
