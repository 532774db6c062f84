"""find_unused_parameters: a branch that takes part in some steps only."""

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


dist.init_process_group()
torch.manual_seed(3)
model = Branched()
wrapped = DistributedDataParallel(model, find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(1, 8):
    noise(step, dist.get_rank())
    optimizer.zero_grad()
    wrapped(torch.randn(8, 24), step % 3 != 0).square().mean().backward()
    optimizer.step()
    account(step, model.parameters(), optimizer)
dist.barrier()
dist.destroy_process_group()
