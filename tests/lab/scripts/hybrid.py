"""Training under torch's fully_shard over a mesh (replicas, shards); the ranks of the first replica
tell what they hold, in a file each where there are several.

Arguments: the account's name; then words: bf16 (computed in it, summed in float32), half (summed in
bfloat16 too), blocks (layers of one size), small, rails (two shards of each replica, of odd sizes,
one of them empty), sgd, clip, accumulate, sum (sums are divided
behind), slow (each step takes a while). In the environment: save (after that step a DCP folder,
beside the account), load (a folder to go on from), steps (it ends after that one).
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from account import account, noise
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

SEED = 3
OWN = tuple(sys.argv[2:])
TOLD = os.environ


def policy(words: tuple[str, ...]) -> MixedPrecisionPolicy:
    if "half" in words:
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if "bf16" in words:
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return MixedPrecisionPolicy()


def shards_of(words: tuple[str, ...]) -> int:
    return 2 if "rails" in words else 1


class Blocks(nn.Module):
    """Layers alike behind an embedding, as transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(31, 40)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(40, 53), nn.GELU(), nn.Linear(53, 40)) for _ in range(4)
        )
        self.norm = nn.LayerNorm(40)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        at = self.embedding((data.abs() * 10).long().clamp(max=30)).mean(1)
        for layer in self.layers:
            at = at + layer(at)
        return self.norm(at) * torch.arange(40.0).to(at.dtype)


def make(words: tuple[str, ...] = OWN) -> nn.Module:
    if "blocks" in words:
        model = Blocks()
        wrapped = list(model.layers)
    elif "rails" in words:
        model = nn.Sequential(
            nn.Linear(64, 13), nn.ReLU(), nn.Linear(13, 17), nn.ReLU(), nn.Linear(17, 13),
            nn.LayerNorm(13), nn.Linear(13, 1),
        )  # fmt: skip
        wrapped = [model[0], model[2], model[4]]
    elif "small" in words:
        model = nn.Sequential(
            nn.Linear(64, 13), nn.ReLU(), nn.Linear(13, 13), nn.ReLU(), nn.Linear(13, 13),
            nn.LayerNorm(13), nn.Linear(13, 3),
        )  # fmt: skip
        wrapped = [model[0], model[2], model[4]]
    else:
        model = nn.Sequential(
            nn.Linear(64, 97), nn.ReLU(), nn.Linear(97, 97), nn.ReLU(), nn.Linear(97, 83),
            nn.LayerNorm(83), nn.Linear(83, 9),
        )  # fmt: skip
        wrapped = [model[0], model[2], model[4]]
    shape = dist.get_world_size() // shards_of(words), shards_of(words)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("r", "s"))
    for layer in wrapped:
        fully_shard(layer, mesh=mesh, mp_policy=policy(words))
    fully_shard(model, mesh=mesh, mp_policy=policy(words))
    if "sum" in words:
        model.set_force_sum_reduction_for_comms(True)
        for layer in wrapped:
            layer.set_force_sum_reduction_for_comms(True)
    return model


def bf16() -> nn.Module:
    return make(("bf16",))


def half() -> nn.Module:
    return make(("half",))


def blocks() -> nn.Module:
    return make(("blocks",))


def small() -> nn.Module:
    return make(("small", "bf16"))


def rails() -> nn.Module:
    return make(("rails",))


def rails_bf16() -> nn.Module:
    return make(("rails", "bf16"))


def summed() -> nn.Module:
    return make(("sum",))


def own(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


class Told:
    """An optimizer's state of whole tensors, as `account` reads it."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: dict) -> None:
        self.state = {
            parameters[p]: {kind: own(value) for kind, value in kept.items()}
            for p, kept in optimizer.state.items()
        }


def main() -> None:
    dist.init_process_group()
    torch.manual_seed(SEED)
    model = make()
    if "sgd" in OWN:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    begin, shards = 0, shards_of(OWN)
    if folder := TOLD.get("load"):
        parameters, state = get_state_dict(model, optimizer)
        tree = {"model": parameters, "optimizer": state, "step": 0}
        dcp.load(tree, checkpoint_id=folder)
        set_state_dict(
            model, optimizer, model_state_dict=tree["model"], optim_state_dict=tree["optimizer"]
        )
        begin = tree["step"]
    for step in range(begin + 1, int(TOLD.get("steps", 6)) + 1):
        if "slow" in OWN:
            time.sleep(0.3)
        optimizer.zero_grad()
        passes = 2 if "accumulate" in OWN else 1
        for turn in range(passes):
            model.set_requires_gradient_sync(turn == passes - 1)
            noise(step, turn, dist.get_rank())
            model(torch.randn(8, 64)).float().square().mean().backward()
        if "clip" in OWN:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        whole = {p: own(p.detach()).requires_grad_() for p in model.parameters()}
        told = {"ring": dist.get_rank(), "writes": dist.get_rank() < 2} if shards > 1 else {}
        account(step, whole.values(), Told(optimizer, whole), **told)
        if step == int(TOLD.get("save", 0)):
            parameters, state = get_state_dict(model, optimizer)
            tree = {"model": parameters, "optimizer": state, "step": step}
            dcp.save(tree, checkpoint_id=f"{sys.argv[1]}.dcp-{step}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
