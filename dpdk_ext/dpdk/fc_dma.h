/* Copy engines (dmadev) that copy frames into one ring. A burst is spread over all of them; copies
 * complete in any order. Read by the compiler and by cffi. */
#ifndef FC_DMA_H
#define FC_DMA_H

#include <stdint.h>

struct fc_ring;
struct fc_dma;

enum {
	FC_DMA_DEVICES_MAX = 16,
};

/* Order in which engines are polled for completed copies. All but FORWARD are for tests: they
 * reorder completions as hardware may. */
enum fc_dma_order {
	FC_DMA_FORWARD,
	FC_DMA_REVERSED, /* one engine per call, the last one first */
	FC_DMA_SHUFFLED, /* a random engine, a random number of copies */
};

struct fc_dma_request {
	const char **names; /* dmadev names in the EAL; used by this ring only */
	uint32_t devices;
	uint16_t descriptors; /* per device, a power of two */
	uint32_t order;       /* enum fc_dma_order */
	uint32_t by_iova;     /* for tests: as if no engine supported virtual addresses */
};

int fc_dma_open(const struct fc_dma_request *request, const struct fc_ring *ring,
		struct fc_dma **out);
void fc_dma_close(struct fc_dma *dma);
/* Number of copies that completed before an older one, which head waits for. */
uint64_t fc_dma_overtaken(const struct fc_dma *dma);

#endif
