"""Training whose parameters are sharded (torch's fully_shard): each rank keeps its own on file.

Arguments: a name to which .rank<r>.pt is added, then whether parameters are gathered in bfloat16.
The file holds, for each step, this rank's shards after it in the order of registration.
"""

import sys

import torch
import torch.distributed as dist
from account import noise
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

STEPS = 4
dist.init_process_group()
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 8))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if "bfloat16" in sys.argv else None)
for layer in model[::2]:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
kept = []
for step in range(1, STEPS + 1):
    noise(step, dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(8, 64)).float().square().mean().backward()
    optimizer.step()
    kept.append([p.to_local().detach().clone() for p in model.parameters()])
torch.save(kept, f"{sys.argv[1]}.rank{dist.get_rank()}.pt")
dist.barrier()
dist.destroy_process_group()
