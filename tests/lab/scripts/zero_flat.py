"""A distributed optimizer as Megatron-LM and DeepSpeed's first stage have it: gradients flat in one
buffer, reduce-scattered; each rank steps its part; all parts are gathered.

The first argument: a name to which .rank<r>.pt is added: this rank's part after each step.
"""

import sys

import torch
import torch.distributed as dist
from account import noise
from torch import nn

STEPS = 6
dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(64, 97), nn.ReLU(), nn.Linear(97, 33), nn.ReLU(), nn.Linear(33, 9))
parameters = list(model.parameters())
count = sum(p.numel() for p in parameters)
padded = -(-count // (64 * ranks)) * 64 * ranks
flat = torch.zeros(padded)
at = 0
for p in parameters:
    flat[at : at + p.numel()] = p.detach().reshape(-1)
    p.data = flat[at : at + p.numel()].view_as(p)
    at += p.numel()
part = nn.Parameter(flat.view(ranks, -1)[rank].clone())
optimizer = torch.optim.AdamW([part], lr=0.01)
kept = []
for step in range(1, STEPS + 1):
    noise(step, rank)
    for p in parameters:
        p.grad = None
    model(torch.randn(8, 64)).square().mean().backward()
    gradient = torch.zeros(padded)
    gradient[:count] = torch.cat([p.grad.reshape(-1) for p in parameters]) / ranks
    part.grad = torch.empty_like(part)
    dist.reduce_scatter_tensor(part.grad, gradient)
    optimizer.step()
    dist.all_gather_into_tensor(flat, part.detach().clone())
    kept.append({"flat": part.detach().clone()})
torch.save(kept, f"{sys.argv[1]}.rank{rank}.pt")
dist.barrier()
dist.destroy_process_group()
