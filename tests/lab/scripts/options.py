"""A perceptron under one of torch's other options for data-parallel training, named by the second
argument: what is not DDP's plain way with gradients."""

import sys

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn
from torch.distributed.algorithms import Join
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS = 6


class Statistics(torch.autograd.Function):
    """Of all ranks' batches: the collectives of torch.nn.SyncBatchNorm, which takes no CPU tensors
    (an all-gather of mean, inverse deviation and count, an all-reduce of two sums)."""

    @staticmethod
    def forward(context, x, weight):
        mean, var = x.mean(0), x.var(0, unbiased=False)
        own = torch.cat([mean, (var + 1e-5).rsqrt(), torch.full((1,), float(len(x)))])
        every = torch.empty(dist.get_world_size() * own.numel())
        dist.all_gather_into_tensor(every, own)
        width = x.shape[1]
        rows = every.view(dist.get_world_size(), -1)
        mean, scale = rows[:, :width].mean(0), rows[:, width : 2 * width].mean(0)
        context.save_for_backward(x, weight, mean, scale)
        return (x - mean) * scale * weight

    @staticmethod
    def backward(context, grad):
        x, weight, mean, scale = context.saved_tensors
        sums = torch.cat([grad.sum(0), (grad * (x - mean)).sum(0)])
        dist.all_reduce(sums)
        count = len(x) * dist.get_world_size()
        one, two = sums.split(x.shape[1])
        mine = (grad - one / count - (x - mean) * scale**2 * two / count) * scale * weight
        return mine, (grad * (x - mean)).sum(0) * scale


class Synchronized(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.register_buffer("running_mean", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.running_mean.lerp_(x.detach().mean(0), 0.1)
        return Statistics.apply(x, self.weight)


class Block(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(60, 60), nn.Tanh(), nn.Linear(60, 60))
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way.startswith("checkpoint"):
            return checkpoint(self.inner, x, use_reentrant=self.way == "checkpoint-reentrant")
        return self.inner(x)


way = sys.argv[2]
dist.init_process_group()
rank = dist.get_rank()
if way.startswith("early"):  # what scripts do before they have a model
    dist.barrier()
    seed = torch.tensor([7 + rank])
    dist.broadcast(seed, 0)
    told = [{"rank": rank, "host": "a" * 40}]
    dist.broadcast_object_list(told, 0)
    dist.all_reduce(torch.ones(5))
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), Block(way), Block(way), nn.Linear(60, 9))
if way == "syncbn":
    model.insert(1, Synchronized(60))
options = {
    "checkpoint-reentrant": {"static_graph": True},
    "mesh": {"device_mesh": init_device_mesh("cpu", (2,))} if way == "mesh" else {},
    "no-init-sync": {"init_sync": False},
    "delayed": {
        "delay_all_reduce_named_params": [("4.weight", model[-1].weight)],
        "param_to_hook_all_reduce": model[0].weight,
    },
}.get(way, {})
if way == "python-reducer":
    torch._dynamo.config.optimize_ddp = "python_reducer"
if way == "manual":
    wrapped = model
    for p in model.parameters():
        dist.broadcast(p.data, 0)
else:
    # torch.compile refuses a first bucket that is larger than the others, and PowerSGD's reductions
    # of several buckets would come in another order on each rank: NCCL's futures are done at once.
    alone = way.startswith(("compile", "python", "power", "local"))
    caps = {} if alone and "caps" not in sys.argv else {"bucket_cap_mb": 0.01}
    wrapped = DistributedDataParallel(model, **caps, **options)
if way == "local-sgd":
    subgroup, _ = dist.new_subgroups(group_size=1)
    state = post_localSGD_hook.PostLocalSGDState(None, subgroup, start_localSGD_iter=2)
    wrapped.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
if way.startswith("power-sgd"):
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    hook = powerSGD_hook.batched_powerSGD_hook if "batched" in way else powerSGD_hook.powerSGD_hook
    wrapped.register_comm_hook(state, hook)
if way == "allreduce-hook":
    wrapped.register_comm_hook(None, default_hooks.allreduce_hook)


def hook_of_sums(_, bucket):
    """Not divided by the number of ranks."""
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])


if way == "sum-hook":
    wrapped.register_comm_hook(None, hook_of_sums)
step_model = wrapped
if way == "compile":
    # Dynamo would compile the lab's process group, which is Python; NCCL's is not.
    torch._dynamo.trace_rules.add("flowcheck")
    step_model = torch.compile(wrapped, backend="aot_eager")
if way == "compile-inner":
    wrapped.module = torch.compile(wrapped.module, backend="aot_eager")
if way == "python-reducer":
    step_model = torch.compile(wrapped, backend="aot_eager")
if way == "zero":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
if way == "local-sgd":
    averager = PeriodicModelAverager(period=2, warmup_steps=2)
    optimizer = PostLocalSGDOptimizer(optimizer, averager)


def train() -> None:
    for step in range(1, STEPS + 1):
        if way.startswith("join") and rank == 1 and step > STEPS - 2:
            break
        noise(step, rank)
        optimizer.zero_grad()
        if way == "python-reducer":
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
                step_model(torch.randn(8, 40)).square().mean().backward()
        else:
            step_model(torch.randn(8, 40)).square().mean().backward()
        if way == "manual":
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        optimizer.step()
        account(step, model.parameters())
        if way == "monitored":
            dist.monitored_barrier()
        if way == "objects":
            told = [None] * dist.get_world_size()
            dist.all_gather_object(told, {"loss": rank + 0.5, "step": step})
            dist.broadcast_object_list([step, "x"], 0)
        if way == "averages" and step % 2 == 0:
            for p in model.parameters():
                mean = p.detach() / dist.get_world_size()
                dist.all_reduce(mean)


if way.startswith("join"):
    with Join([wrapped]) if way == "join-context" else wrapped.join():
        train()
else:
    train()
dist.barrier()
dist.destroy_process_group()
