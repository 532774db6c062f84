"""Data-parallel training without DistributedDataParallel. The second argument says how:

each     weights broadcast one by one, every gradient summed by itself in registration order
flat     all gradients in one buffer, in registration order
buckets  a flat buffer in reverse registration order, cut into buckets between parameters and scaled
         beforehand, as Megatron-LM's own wrapper does

"metric" behind it sums a loss after each step, "ready" sums single gradients in an order
that no rule gives, "silent" broadcasts no weights.
"""

import sys

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn

BUCKET_ELEMENTS = 400

dist.init_process_group()
torch.manual_seed(5)
model = nn.Sequential(
    *(nn.Linear(12, 20), nn.LayerNorm(20), nn.GELU()),
    *(nn.Linear(20, 15), nn.ReLU(), nn.Linear(15, 7)),
)
own = list(model.parameters())
ranks = dist.get_world_size()
if "silent" not in sys.argv:
    for parameter in own:
        dist.broadcast(parameter.data, 0)
optimizer = torch.optim.AdamW(own, lr=0.01)


def reduce_each() -> None:
    order = own
    if "ready" in sys.argv:
        order = own[::-1]
        order.sort(key=torch.Tensor.dim)
    for parameter in order:
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks


def reduce_flat(order: list[torch.Tensor], most: int) -> None:
    bucket: list[torch.Tensor] = []
    for parameter in order:
        bucket.append(parameter)
        if sum(p.numel() for p in bucket) >= most or parameter is order[-1]:
            buffer = torch.cat([p.grad.reshape(-1) for p in bucket]) / ranks
            dist.all_reduce(buffer)
            parts = buffer.split([p.numel() for p in bucket])
            for p, part in zip(bucket, parts, strict=True):
                p.grad.copy_(part.view_as(p))
            bucket = []


for step in range(1, 5):
    noise(step, dist.get_rank())
    loss = nn.functional.cross_entropy(model(torch.randn(8, 12)), torch.randint(7, (8,)))
    optimizer.zero_grad()
    loss.backward()
    if "each" in sys.argv:
        reduce_each()
    elif "flat" in sys.argv:
        reduce_flat(own, 1 << 40)
    else:
        reduce_flat(own[::-1], BUCKET_ELEMENTS)
    optimizer.step()
    if "metric" in sys.argv:
        dist.all_reduce(loss.detach())
    account(step, own, optimizer)
dist.barrier()
dist.destroy_process_group()
