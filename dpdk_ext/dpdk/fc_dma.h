/* Copy engines (dmadev) that write into one ring. A burst is spread over all of
 * them; they finish in any order. Read by the compiler and by cffi. */
#ifndef FC_DMA_H
#define FC_DMA_H

#include <stdint.h>

struct fc_ring;
struct fc_dma;

enum {
	FC_DMA_DEVICES_MAX = 16,
};

/* In which order the engines are asked what they finished. All but FORWARD are
 * for tests: they make finished copies overtake each other as hardware may. */
enum fc_dma_order {
	FC_DMA_FORWARD,
	FC_DMA_REVERSED, /* one engine a time, the last one first */
	FC_DMA_SHUFFLED, /* a random engine, a random number of copies */
};

struct fc_dma_request {
	const char **names; /* dmadevs as the EAL knows them; of this ring alone */
	uint32_t devices;
	uint16_t descriptors; /* per device, a power of two */
	uint32_t order;       /* enum fc_dma_order */
	uint32_t by_iova;     /* for tests: as if no engine took virtual addresses */
};

int fc_dma_open(const struct fc_dma_request *request, const struct fc_ring *ring,
		struct fc_dma **out);
void fc_dma_close(struct fc_dma *dma);
/* Copies that had ended while an older one had not: what the watermark holds back. */
uint64_t fc_dma_overtaken(const struct fc_dma *dma);

#endif
