"""A perceptron under one of DDP's ways to go about gradients, named by the second argument; a hook
may be named behind it."""

import sys

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

way = sys.argv[2]
dist.init_process_group("gloo" if way == "gloo" else None)
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 9))
if way == "tied":
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    model.append(nn.ReLU()).append(nn.Linear(9, 60)).append(nn.Linear(60, 60))
    model[7].weight = model[2].weight
if way == "frozen":
    model[0].requires_grad_(False)
if way == "frozen-scalar":
    model.insert(0, nn.PReLU()).requires_grad_(True)[0].requires_grad_(False)
if way == "frozen-last":
    model[4].requires_grad_(False)
if way == "bfloat16":
    model = model.bfloat16()
options = {
    "static": {"static_graph": True},
    "view": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
}
wrapped = DistributedDataParallel(model, bucket_cap_mb=0.01, **options.get(way, {}))
hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


def hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket):
    """torch refuses its bf16 hook, by its own name, where there is no NCCL."""
    return hooks[sys.argv[-1]](group, bucket)


if sys.argv[-1] in hooks:
    wrapped.register_comm_hook(None, hook)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
kind = torch.bfloat16 if way == "bfloat16" else torch.float32
for step in range(1, 6):
    optimizer.zero_grad()
    noise(step, dist.get_rank())
    if way == "no-sync":
        with wrapped.no_sync():
            wrapped(torch.randn(8, 40)).square().mean().backward()
    wrapped(torch.randn(8, 40, dtype=kind)).square().mean().backward()
    optimizer.step()
    account(step, model.parameters(), optimizer)
    if way == "twin":
        dist.all_reduce(torch.randn(9 * 61 + 60 * 61))
dist.barrier()
dist.destroy_process_group()
