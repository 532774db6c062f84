"""Training whose parameters torch's fully_shard gathers; each rank keeps its own part on file.

Arguments: a name to which .rank<r>.pt is added, and .gradients<r>.pt for its part of those; then
words: bfloat16 (gathered in it), root (the last layer is the root's own, which stays gathered after
the forward), save (after step 3 rank 0 writes a whole checkpoint, which gathers all parameters once
more, beside the name), mesh (two groups that each hold all of the model), flat
(FullyShardedDataParallel in place of fully_shard).
"""

import sys

import torch
import torch.distributed as dist
from account import noise
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

STEPS, SAVED = 6, 3


def make(words: tuple[str, ...] = tuple(sys.argv[1:])) -> nn.Module:
    model = nn.Sequential(
        nn.Linear(64, 97), nn.ReLU(), nn.Linear(97, 97), nn.ReLU(), nn.Linear(97, 97),
        nn.LayerNorm(97), nn.Linear(97, 9),
    )  # fmt: skip
    if "flat" in words:
        place = torch.device("cpu")
        for at in range(0, 5 if "root" in words else 7, 2):
            model[at] = FullyShardedDataParallel(model[at], device_id=place)
        return FullyShardedDataParallel(model, device_id=place)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if "bfloat16" in words else None)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s")) if "mesh" in words else None
    for layer in model[: 5 if "root" in words else 7 : 2]:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def bfloat16() -> nn.Module:
    return make(("bfloat16",))


def root() -> nn.Module:
    return make(("root",))


def flat() -> nn.Module:
    return make(("flat", "root"))


def mesh() -> nn.Module:
    return make(("mesh", "root"))


def local(parameter: torch.Tensor) -> torch.Tensor:
    own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return own.detach().clone()


def main() -> None:
    dist.init_process_group()
    torch.manual_seed(3)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    kept, gradients = [], []
    for step in range(1, STEPS + 1):
        noise(step, dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(8, 64)).float().square().mean().backward()
        gradients.append({n: local(p.grad) for n, p in model.named_parameters()})
        optimizer.step()
        kept.append({n: local(p) for n, p in model.named_parameters()})
        if step == SAVED and "save" in sys.argv:
            options = StateDictOptions(full_state_dict=True)
            parameters, state = get_state_dict(model, optimizer, options=options)
            if dist.get_rank() == 0:
                whole = {"model": parameters, "optimizer": state, "step": step}
                torch.save(whole, f"{sys.argv[1]}.pt")
    torch.save(kept, f"{sys.argv[1]}.rank{dist.get_rank()}.pt")
    torch.save(gradients, f"{sys.argv[1]}.gradients{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
