"""A branch that takes part in some steps only, in late ones, or never: the second argument."""

import sys

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Branched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.branch = nn.Linear(24, 40), nn.Linear(40, 40)
        self.head = nn.Linear(40, 5)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        x = torch.relu(self.trunk(x))
        return self.head(x + self.branch(x) if both else x)


way = sys.argv[2] if len(sys.argv) > 2 else "some"
options = {"static_graph": True} if way == "static" else {"find_unused_parameters": True}
both = {"some": {1, 2, 4, 5, 7}, "late": {4, 5, 7}, "never": set(), "static": set()}[way]
dist.init_process_group()
torch.manual_seed(3)
model = Branched()
wrapped = DistributedDataParallel(model, bucket_cap_mb=0.005, **options)
if way == "late":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, dampening=0.3)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(1, 8):
    noise(step, dist.get_rank())
    optimizer.zero_grad()
    # Where ranks differ, a parameter that one of them used has a gradient on all.
    used = step in both and (way != "late" or step != 5 or dist.get_rank() == 1)
    wrapped(torch.randn(8, 24), used).square().mean().backward()
    optimizer.step()
    account(step, model.parameters(), optimizer)
dist.barrier()
dist.destroy_process_group()
