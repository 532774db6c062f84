/* The engines' implementation of fc_copies.h. Not read by cffi. */
#ifndef FC_DMA_OPS_H
#define FC_DMA_OPS_H

#include "fc_copies.h"

void fc_dma_submit(struct fc_dma *dma, struct fc_copies *copies);
void fc_dma_complete(struct fc_dma *dma, struct fc_copies *copies);

#endif
