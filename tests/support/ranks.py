"""One rank of a job of plain torch over gloo: `train` in DistributedDataParallel, which saves
through torch.distributed.checkpoint, and `resume`, which goes on from such folders in shards."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist

TAKEN, MORE = 3, 3
LIMIT_S = 200
SIZES = (13, 10, 7)
"""None is a multiple of 4: shards are of different sizes."""


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    layers = itertools.pairwise(SIZES)
    net = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in layers))
    net.append(torch.nn.LayerNorm(SIZES[-1]))
    return net


def optimizer_of(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1, foreach=False)


def backward(net: torch.nn.Module, step: int) -> None:
    """All ranks have the same samples, so that gradients do not depend on how many ranks there
    are but by their order of additions, which is the same for all who resume."""
    torch.manual_seed(500 + step)
    net(torch.randn(8, SIZES[0])).square().mean().backward()


def train(out: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    net = torch.nn.parallel.DistributedDataParallel(model())
    optimizer = optimizer_of(net)
    gradients = []
    for step in range(1, TAKEN + 1):
        optimizer.zero_grad()
        backward(net, step)
        gradients.append([p.grad.clone() for p in net.parameters()])
        optimizer.step()
    values, states = get_state_dict(net, optimizer)
    dcp.save({"model": values, "optimizer": states, "step": TAKEN}, checkpoint_id=out / "theirs")
    if dist.get_rank() == 0:
        torch.save(gradients, out / "gradients.pt")


def resume(out: Path, *names: str) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_state_dict,
        set_state_dict,
    )
    from torch.distributed.fsdp import fully_shard

    for name in names:
        net = model()
        for parameter in net.parameters():  # nothing but the folder gives the values
            torch.nn.init.constant_(parameter, float("nan"))
        fully_shard(net)
        optimizer = optimizer_of(net)
        for parameter in net.parameters():
            torch.nn.init.zeros_(parameter)
        values, states = get_state_dict(net, optimizer)
        held = {"model": values, "optimizer": states, "step": 0}
        dcp.load(held, checkpoint_id=out / name)
        set_state_dict(
            net, optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"]
        )
        assert held["step"] == TAKEN
        for step in range(TAKEN + 1, TAKEN + MORE + 1):
            optimizer.zero_grad()
            backward(net, step)
            optimizer.step()
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        values, states = get_state_dict(net, optimizer, options=whole)
        dcp.save(
            {"model": get_state_dict(net, optimizer)[0]}, checkpoint_id=out / f"{name}-sharded"
        )
        if dist.get_rank() == 0:
            torch.save({"model": values, "optimizer": states}, out / f"{name}-after.pt")


def launch(world: int, out: Path, *arguments: str) -> None:
    """Runs this file as `world` ranks; raises where one of them fails."""
    from support.free import free_port  # a rank runs this file alone

    port = free_port()
    ranks = []
    for rank in range(world):
        environment = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-W", "ignore", __file__, str(out), *arguments]
        ranks.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    failed = [
        told for rank in ranks for _, told in [rank.communicate(timeout=90)] if rank.returncode
    ]
    if failed:
        raise AssertionError(failed[0][-2000:])


def main() -> None:
    out, what, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if what == "train":
        train(Path(out))
    else:
        resume(Path(out), *names)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
