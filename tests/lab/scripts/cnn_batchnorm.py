"""A small CNN with BatchNorm: its running statistics are broadcast at every forward."""

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
torch.manual_seed(3)
model = nn.Sequential(
    *(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU()),
    *(nn.Conv2d(12, 20, 3), nn.BatchNorm2d(20), nn.ReLU(), nn.Flatten(), nn.Linear(20 * 16, 10)),
)
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(1, 6):
    noise(step, dist.get_rank())
    loss = nn.functional.cross_entropy(wrapped(torch.randn(8, 3, 8, 8)), torch.randint(10, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    account(step, model.parameters(), optimizer)
dist.barrier()
dist.destroy_process_group()
