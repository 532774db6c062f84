"""Two models, each in a wrapper of its own, trained in turn as a generator and its critic."""

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
torch.manual_seed(3)
generator, critic = nn.Linear(20, 37), nn.Sequential(nn.Linear(37, 50), nn.ReLU(), nn.Linear(50, 1))
wrapped = [DistributedDataParallel(model) for model in (generator, critic)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (generator, critic)]
for step in range(1, 6):
    noise(step, dist.get_rank())
    made = wrapped[0](torch.randn(8, 20))
    for model, optimizer, values in zip(
        (wrapped[1], None), optimizers[::-1], (made.detach(), made), strict=True
    ):
        score = (model or critic)(values).square().mean()
        optimizer.zero_grad()
        score.backward()
        optimizer.step()
    account(step, generator.parameters(), *optimizers)
dist.barrier()
dist.destroy_process_group()
