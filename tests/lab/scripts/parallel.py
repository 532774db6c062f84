"""Data-parallel training beside another way to be parallel, named by the second argument.

Of four ranks 0 and 2 train one half of the model data-parallel, 1 and 3 the other; 0 and 1 share
a layer (tensor), pass on what they made (pipeline), or swap tokens (experts). In `metrics` all
ranks train one model, and a second group of the same ranks reduces what is as large as a bucket.
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from account import account, noise
from shared import Shared
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDE, STEPS, LAYERS = 48, 5, 3
way = sys.argv[2]
dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)


class Swap(torch.autograd.Function):
    """Tokens to the other rank of the pair and back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(x)
        dist.all_to_all_single(made, x.contiguous(), group=beside)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return Swap.forward(ctx, gradient)


def groups(*members: list[int]) -> Any:
    """The group of these that this rank is in."""
    made = [dist.new_group(of) for of in members]
    return next(g for g, of in zip(made, members, strict=True) if rank in of)


if way == "metrics":
    data, beside = dist.group.WORLD, dist.new_group(list(range(ranks)))
else:
    beside = groups([0, 1], [2, 3])
    data = groups([0, 2], [1, 3])
layers = [nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, 7)]
if way == "tensor":
    layers = [Shared(WIDE, WIDE // 2, beside) for _ in range(LAYERS)] + [nn.Linear(WIDE, 7)]
expert = nn.Linear(WIDE, WIDE)
model = nn.Sequential(*layers)
wrapped = DistributedDataParallel(model, process_group=data, bucket_cap_mb=0.01)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
others = torch.optim.SGD(expert.parameters(), lr=0.01)
for step in range(1, STEPS + 1):
    noise(step, rank // 2)
    optimizer.zero_grad()
    x = torch.randn(8, WIDE)
    if way == "pipeline" and rank % 2:
        x = torch.empty(8, WIDE, requires_grad=True)
        dist.recv(x.detach(), rank - 1)
    if way == "experts":
        x = Swap.apply(expert(Swap.apply(x.requires_grad_())))
    if way == "pipeline" and not rank % 2:
        made = wrapped(x)
        padded = torch.zeros(8, WIDE)
        padded[:, :7] = made.detach()
        dist.send(padded, rank + 1)
        gradient = torch.empty_like(padded)
        dist.recv(gradient, rank + 1)
        made.backward(gradient[:, :7].contiguous())
    else:
        loss = wrapped(x).square().mean()
        loss.backward()
        if way == "pipeline":
            dist.send(x.grad, rank - 1)
        elif way == "metrics":
            dist.all_reduce(torch.randn(WIDE * 7 + 7), group=beside)
        else:
            dist.all_reduce(loss.detach())
    optimizer.step()
    others.step()
    if way == "pipeline":
        dist.all_reduce(torch.ones(1))
    account(step, model.parameters(), optimizer)
dist.barrier()
dist.destroy_process_group()
