/* The dmadev API is experimental in 22.11 and stable, without changes, from 23.11 on. It is the
 * only experimental API used here. */
#define ALLOW_EXPERIMENTAL_API
#include "fc_dma.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <rte_cycles.h>
#include <rte_dmadev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_memory.h>
#include <rte_vfio.h>

#include "fc_capture.h"
#include "fc_dma_ops.h"
#include "fc_eal.h"
#include "fc_error.h"
#include "fc_ring_ops.h"

enum { VCHAN = 0, COMPLETIONS_MAX = 64 };

struct device {
	int16_t id;
	uint8_t virtual_addresses; /* 1: uses virtual addresses, 0: IOVAs */
	uint8_t submitted;         /* 1: has copies without a doorbell yet */
	uint64_t started, ended;   /* number of copies */
	uint64_t *flights;         /* [FC_FLIGHTS] ordinal of the flight of the n-th copy */
};

struct fc_dma {
	struct device devices[FC_DMA_DEVICES_MAX];
	uint32_t count, next, order;
	uint32_t registered; /* 1: the ring is registered (rte_extmem_register) */
	uint64_t overtaken, random;
	const uint8_t *base; /* start of the ring's mapping */
	uint64_t bytes;
	rte_iova_t *pages; /* IOVA of each 2 MiB page; NULL: IOVA equals VA */
};

static int no_such_engine(const char *name)
{
	char engines[256] = "none", why[256];
	size_t used = 0;

	for (int id = 0; id < INT16_MAX && (id = rte_dma_next_dev((int16_t)id)) >= 0; id++) {
		struct rte_dma_info what;

		if (rte_dma_info_get((int16_t)id, &what) < 0 || used + 66 > sizeof engines)
			continue;
		used += (size_t)snprintf(engines + used, sizeof engines - used, "%s%.60s",
					 used ? ", " : "", what.dev_name);
	}
	fc_eal_complaints(why, sizeof why);
	if (why[0])
		return fc_fail(ENODEV, ENGINE_NOT_PROBED, .texts = { name, engines, why });
	return fc_fail(ENODEV, ENGINE_MISSING, .texts = { name, engines });
}

static int open_device(struct device *device, const char *name, const struct fc_dma_request *want)
{
	struct rte_dma_info what;
	const struct rte_dma_conf conf = { .nb_vchans = 1 };
	const struct rte_dma_vchan_conf channel = { .direction = RTE_DMA_DIR_MEM_TO_MEM,
						    .nb_desc = want->descriptors };
	const int id = rte_dma_get_dev_id_by_name(name);

	if (id < 0)
		return no_such_engine(name);
	device->id = (int16_t)id;
	int code = rte_dma_info_get(device->id, &what);
	if (code == 0 && !(what.dev_capa & RTE_DMA_CAPA_MEM_TO_MEM))
		return fc_fail(ENOTSUP, ENGINE_COPIES_NO_MEMORY, .texts = { name });
	device->virtual_addresses = (what.dev_capa & RTE_DMA_CAPA_SVA) && !want->by_iova;
	if (code == 0)
		code = rte_dma_configure(device->id, &conf);
	if (code == 0)
		code = rte_dma_vchan_setup(device->id, VCHAN, &channel);
	if (code == 0)
		code = rte_dma_start(device->id);
	if (code < 0)
		return fc_fail(-code, ENGINE_NOT_CONFIGURED, .texts = { name, rte_strerror(-code) },
			       .numbers = { want->descriptors });
	device->flights = calloc(FC_FLIGHTS, sizeof *device->flights);
	if (!device->flights)
		return fc_fail(ENOMEM, ENGINE_WITHOUT_MEMORY, .texts = { name });
	return 0;
}

/* Finds the physical addresses: a slot never crosses a 2 MiB page, but may cross a 4 KiB page. */
static int find_pages(struct fc_dma *dma, const struct fc_ring *ring)
{
	const uint64_t count = ring->map.bytes / FC_HUGE_PAGE_BYTES;

	if (!ring->map.huge_pages)
		return fc_fail(ENOTSUP, ENGINE_NEEDS_HUGE_PAGES);
	dma->pages = calloc(count, sizeof *dma->pages);
	if (!dma->pages)
		return fc_fail(ENOMEM, PAGE_TABLE_WITHOUT_MEMORY, .numbers = { count });
	for (uint64_t page = 0; page < count; page++) {
		const volatile uint8_t *at = dma->base + page * FC_HUGE_PAGE_BYTES;

		(void)*at; /* a page has no physical address before it is touched */
		dma->pages[page] = rte_mem_virt2phy((const void *)(uintptr_t)at);
		if (dma->pages[page] == RTE_BAD_IOVA)
			return fc_fail(EFAULT, PAGE_WITHOUT_ADDRESS, .numbers = { page });
	}
	return 0;
}

/* Registers the ring for engines that do not use process addresses: its memory is not part of the
 * EAL, so that nobody else maps it for them. */
static int register_ring(struct fc_dma *dma, const struct fc_ring *ring)
{
	const uint64_t page = ring->map.huge_pages ? FC_HUGE_PAGE_BYTES : 4096;
	int code = 0;

	dma->base = ring->map.base;
	dma->bytes = ring->map.bytes;
	if (rte_eal_iova_mode() == RTE_IOVA_PA)
		code = find_pages(dma, ring);
	if (code < 0)
		return code;
	if (rte_extmem_register(ring->map.base, dma->bytes, dma->pages,
				(unsigned int)(dma->pages ? dma->bytes / page : 0), page) < 0)
		return fc_fail(rte_errno, RING_NOT_REGISTERED,
			       .texts = { rte_strerror(rte_errno) });
	dma->registered = 1;
	if (rte_vfio_is_enabled("vfio") <= 0)
		return 0;
	for (uint64_t at = 0; at < dma->bytes && code == 0; at += FC_HUGE_PAGE_BYTES) {
		const uint64_t left = dma->bytes - at;
		const uint64_t va = (uint64_t)(uintptr_t)dma->base + at;

		code = rte_vfio_container_dma_map(
			RTE_VFIO_DEFAULT_CONTAINER_FD, va,
			dma->pages ? dma->pages[at / FC_HUGE_PAGE_BYTES] : va,
			left < FC_HUGE_PAGE_BYTES ? left : FC_HUGE_PAGE_BYTES);
	}
	return code < 0
		       ? fc_fail(EIO, RING_NOT_MAPPED_FOR_DMA, .texts = { rte_strerror(rte_errno) })
		       : 0;
}

int fc_dma_open(const struct fc_dma_request *request, const struct fc_ring *ring,
		struct fc_dma **out)
{
	int code = 0, by_iova = 0;

	*out = NULL;
	if (!request->devices || request->devices > FC_DMA_DEVICES_MAX)
		return fc_fail(EINVAL, ENGINES_REFUSED,
			       .numbers = { request->devices, FC_DMA_DEVICES_MAX });
	struct fc_dma *dma = calloc(1, sizeof *dma);
	if (!dma)
		return fc_fail(ENOMEM, ENGINES_WITHOUT_MEMORY, .numbers = { request->devices });
	dma->order = request->order;
	dma->random = 0x9e3779b97f4a7c15ull; /* any seed but 0 */
	while (code == 0 && dma->count < request->devices) {
		struct device *device = &dma->devices[dma->count];

		code = open_device(device, request->names[dma->count++], request);
		by_iova |= !device->virtual_addresses;
	}
	if (code == 0 && by_iova)
		code = register_ring(dma, ring);
	if (code < 0)
		fc_dma_close(dma);
	else
		*out = dma;
	return code;
}

void fc_dma_close(struct fc_dma *dma)
{
	if (!dma)
		return;
	for (uint32_t i = 0; i < dma->count; i++) {
		if (dma->devices[i].flights) {
			(void)rte_dma_stop(dma->devices[i].id);
			(void)rte_dma_close(dma->devices[i].id);
		}
		free(dma->devices[i].flights);
	}
	if (dma->registered)
		(void)rte_extmem_unregister((void *)(uintptr_t)dma->base, dma->bytes);
	free(dma->pages);
	free(dma);
}

uint64_t fc_dma_overtaken(const struct fc_dma *dma)
{
	return dma->overtaken;
}

static rte_iova_t target(const struct fc_dma *dma, const struct device *device, const uint8_t *to)
{
	if (device->virtual_addresses || !dma->pages)
		return (rte_iova_t)(uintptr_t)to;
	const uint64_t at = (uint64_t)(to - dma->base);
	return dma->pages[at / FC_HUGE_PAGE_BYTES] + at % FC_HUGE_PAGE_BYTES;
}

static bool hand_over(struct fc_dma *dma, struct device *device, const struct fc_flight *flight,
		      uint64_t ordinal)
{
	const struct rte_mbuf *mbuf = flight->mbuf;
	const rte_iova_t from = device->virtual_addresses
					? (rte_iova_t)(uintptr_t)rte_pktmbuf_mtod(mbuf, void *)
					: rte_pktmbuf_iova(mbuf);

	if (rte_dma_copy(device->id, VCHAN, from, target(dma, device, flight->to),
			 flight->frame_bytes, 0) < 0)
		return false;
	device->flights[device->started++ & (FC_FLIGHTS - 1)] = ordinal;
	device->submitted = 1;
	return true;
}

void fc_dma_submit(struct fc_dma *dma, struct fc_copies *copies)
{
	for (; copies->submitted != copies->next; copies->submitted++) {
		struct fc_flight *flight = fc_flight_at(copies, copies->submitted);
		struct device *device = &dma->devices[dma->next++ % dma->count];

		if (flight->outcome == FC_PUSHED) {
			if (flight->segments == 1 &&
			    hand_over(dma, device, flight, copies->submitted)) {
				flight->copied_by = FC_BY_ENGINE;
				continue;
			}
			fc_flight_copy(flight, FC_BY_CPU_INSTEAD);
		}
		flight->done = 1;
		rte_pktmbuf_free(flight->mbuf);
		flight->mbuf = NULL;
	}
	for (uint32_t i = 0; i < dma->count; i++) {
		if (dma->devices[i].submitted)
			(void)rte_dma_submit(dma->devices[i].id, VCHAN);
		dma->devices[i].submitted = 0;
	}
}

static void end_flight(struct fc_dma *dma, struct device *device, struct fc_copies *copies,
		       bool copied)
{
	const uint64_t ordinal = device->flights[device->ended++ & (FC_FLIGHTS - 1)];
	struct fc_flight *flight = fc_flight_at(copies, ordinal);

	if (!copied)
		fc_flight_copy(flight, FC_BY_CPU_INSTEAD);
	dma->overtaken += ordinal != copies->first && !fc_flight_at(copies, copies->first)->done;
	flight->done = 1;
	rte_pktmbuf_free(flight->mbuf);
	flight->mbuf = NULL;
}

static uint16_t ask(struct fc_dma *dma, struct device *device, struct fc_copies *copies,
		    uint16_t limit)
{
	bool failed = false;

	if (device->started == device->ended)
		return 0;
	const uint16_t count = rte_dma_completed(device->id, VCHAN, limit, NULL, &failed);
	for (uint16_t i = 0; i < count; i++)
		end_flight(dma, device, copies, true);
	if (FC_UNLIKELY(failed)) {
		enum rte_dma_status_code status = RTE_DMA_STATUS_SUCCESSFUL;

		if (rte_dma_completed_status(device->id, VCHAN, 1, NULL, &status) == 1)
			end_flight(dma, device, copies, status == RTE_DMA_STATUS_SUCCESSFUL);
	}
	return count;
}

/* xorshift64: pseudo-random and repeatable. */
static uint32_t draw(struct fc_dma *dma)
{
	dma->random ^= dma->random << 13;
	dma->random ^= dma->random >> 7;
	dma->random ^= dma->random << 17;
	return (uint32_t)(dma->random >> 32);
}

void fc_dma_complete(struct fc_dma *dma, struct fc_copies *copies)
{
	if (dma->order == FC_DMA_SHUFFLED) {
		(void)ask(dma, &dma->devices[draw(dma) % dma->count], copies,
			  (uint16_t)(1 + draw(dma) % COMPLETIONS_MAX));
		return;
	}
	for (uint32_t i = 0; i < dma->count; i++) {
		const uint32_t which = dma->order == FC_DMA_REVERSED ? dma->count - 1 - i : i;

		if (ask(dma, &dma->devices[which], copies, COMPLETIONS_MAX) &&
		    dma->order == FC_DMA_REVERSED)
			return;
	}
}
