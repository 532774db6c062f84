"""Parameters of two dtypes: float32 and the one named (float64, bfloat16)."""

import sys

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn
from torch.nn.parallel import DistributedDataParallel

other = getattr(torch, sys.argv[2])


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(30, 50), nn.Linear(50, 21).to(other)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x)).to(other))


dist.init_process_group()
torch.manual_seed(3)
model = Mixed()
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(1, 6):
    noise(step, dist.get_rank())
    optimizer.zero_grad()
    wrapped(torch.randn(8, 30)).square().mean().backward()
    optimizer.step()
    account(step, model.parameters(), optimizer)
dist.barrier()
dist.destroy_process_group()
