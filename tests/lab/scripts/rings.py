"""Several data-parallel rings of one job, as Megatron-LM's TP x PP x DP makes them.

Words: digests, ways of the mesh ("dp2,tp2", "dp2,pp2,tp2", ...), then what else is to be so:
`alike` (every ring holds tensors of the same shapes), `seed` (and of the same values), `clip`
(each ring by its own norm), `norm` (all by that of all, as Megatron-LM does),
`save` (checkpoints of steps 2 and 5, one of each ring), `own` (no DistributedDataParallel: weights
are broadcast one by one, gradients scaled and summed in flat buckets in reverse registration order,
as Megatron-LM's own wrapper does).
Tensor-parallel ranks share each layer, pipeline stages pass activations on; each data-parallel
group wraps its part with DistributedDataParallel.
"""

import sys

import torch
import torch.distributed as dist
from account import account, noise
from shared import Shared
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

WIDE, STEPS, LAYERS, BUCKET_ELEMENTS = 48, 5, 2, 3000
words = sys.argv[3:]
ways = {part[:2]: int(part[2:]) for part in sys.argv[2].split(",")}
mesh = init_device_mesh("cpu", tuple(ways.values()), mesh_dim_names=tuple(ways))
data = mesh.get_group("dp")
tensor = mesh.get_group("tp") if "tp" in ways else None
stages = mesh.get_group("pp") if "pp" in ways else None
beside = tuple(way for way in ways if way != "dp")
beside_data = (mesh[beside]._flatten() if len(beside) > 1 else mesh[beside[0]]).get_group()
part = mesh.get_local_rank("tp") if tensor is not None else 0
stage = mesh.get_local_rank("pp") if stages is not None else 0
last = stages is None or stage == ways["pp"] - 1
ring = part + stage * ways.get("tp", 1)
torch.manual_seed(3 if "seed" in words else 3 + ring)


own = WIDE // 2 if "alike" in words else WIDE // 2 + 8 * part
deep = LAYERS if "alike" in words else LAYERS + stage
layers: list[nn.Module] = [Shared(WIDE, own, tensor) for _ in range(deep)]
if "own" in words:
    layers.append(nn.Linear(WIDE, 10))
model = nn.Sequential(*layers)
if "own" in words:
    wrapped: nn.Module = model
    for parameter in model.parameters():
        dist.broadcast(parameter.data, dist.get_global_rank(data, 0), group=data)
else:
    wrapped = DistributedDataParallel(model, process_group=data, bucket_cap_mb=0.01)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
before = stages and dist.get_global_rank(stages, stage - 1) if stage else None
behind = None if last else dist.get_global_rank(stages, stage + 1)


def sum_gradients() -> None:
    bucket: list[torch.Tensor] = []
    order = list(model.parameters())[::-1]
    for parameter in order:
        bucket.append(parameter)
        if sum(p.numel() for p in bucket) >= BUCKET_ELEMENTS or parameter is order[-1]:
            buffer = torch.cat([p.grad.reshape(-1) for p in bucket]) / dist.get_world_size(data)
            dist.all_reduce(buffer, group=data)
            parts = buffer.split([p.numel() for p in bucket])
            for p, reduced in zip(bucket, parts, strict=True):
                p.grad.copy_(reduced.view_as(p))
            bucket = []


def clip_together(most: float) -> None:
    square = nn.utils.get_total_norm([p.grad for p in model.parameters()]) ** 2.0
    dist.all_reduce(square, group=beside_data)
    coefficient = most / (square.item() ** 0.5 + 1.0e-6)
    if coefficient < 1.0:
        for p in model.parameters():
            p.grad.mul_(coefficient)


for step in range(1, STEPS + 1):
    noise(step, mesh.get_local_rank("dp"))
    optimizer.zero_grad()
    x = torch.randn(8, WIDE)
    if before is not None:
        dist.recv(x, before)
        x.requires_grad_()
    made = wrapped(x)
    if behind is not None:
        dist.send(made.detach(), behind)
        gradient = torch.empty_like(made)
        dist.recv(gradient, behind)
        made.backward(gradient)
    else:
        (made.square().mean() * (1 + ring)).backward()
    if before is not None:
        dist.send(x.grad, before)
    if "own" in words:
        sum_gradients()
    if "norm" in words:
        clip_together(0.5)
    if "clip" in words:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    account(step, model.parameters(), optimizer, ring=ring, writes=not dist.get_rank(data))
    if "save" in words and step in (2, STEPS) and not dist.get_rank(data):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, f"{sys.argv[1]}.{ring}.step-{step}.pt")
dist.barrier()
dist.destroy_process_group()
