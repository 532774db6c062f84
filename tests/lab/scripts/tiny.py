"""Weights of a few bytes, or collectives of a few bytes that are no model's at all."""

import sys

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x


dist.init_process_group()
torch.manual_seed(3)
if sys.argv[2] == "numbers":
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.ones(1, dtype=torch.int64))
    for told in (torch.ones(2, dtype=torch.int64), torch.randn(1)):
        dist.broadcast(told, 0)
    for step in range(8):
        dist.all_reduce(torch.randn(1))
        if not step:
            for told in (torch.tensor([0, 1]), torch.tensor([1])):
                dist.broadcast(told.to(torch.int32), 0)
else:
    model = Scaled() if sys.argv[2] == "one" else nn.Linear(1, 1)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, 6):
        noise(step, dist.get_rank())
        optimizer.zero_grad()
        wrapped(torch.randn(8, 1)).square().mean().backward()
        optimizer.step()
        account(step, model.parameters(), optimizer)
dist.barrier()
dist.destroy_process_group()
