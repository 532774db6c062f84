"""A small CNN with BatchNorm: its running statistics are broadcast at every forward. "unused" and
"mixed" behind it: find_unused_parameters, and a last layer of another dtype."""

import sys

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
kind = torch.bfloat16 if "mixed" in sys.argv else torch.float32
model[-1].to(kind)
model[-1].register_forward_pre_hook(lambda _, inputs: inputs[0].to(kind))
wrapped = DistributedDataParallel(model, find_unused_parameters="unused" in sys.argv)
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
