"""ZeroRedundancyOptimizer beside DistributedDataParallel: each rank steps a part of the parameters
and broadcasts them."""

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
torch.manual_seed(3)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(64, 97), nn.ReLU(), nn.Linear(97, 33), nn.ReLU(), nn.Linear(33, 9))
)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
for step in range(1, 6):
    noise(step, dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    account(step, model.parameters())
dist.barrier()
dist.destroy_process_group()
