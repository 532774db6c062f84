"""Clipping by a norm over all shards (hybrid sharding): as torch does it over DTensors."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from flowcheck.replica.optimizer.gradient_clipping import clip_by_shards, squared_norms
from flowcheck.replica.param_layout import Layout

SHARDS, STEPS, MOST = 2, 20, 0.05
Told = list[tuple[list[np.ndarray], list[np.ndarray]]]
"""[step] gradients of one shard's parameters, before and behind torch's clipping."""


def model() -> nn.Module:
    """Odd sizes, and a parameter of which one shard has nothing."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(24, 13), nn.Linear(13, 7), nn.LayerNorm(7), nn.Linear(7, 1))


def _rank(rank: int, port: int, told: processes.SimpleQueue[tuple[int, Told]]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=SHARDS)
    mesh = init_device_mesh("cpu", (1, SHARDS), mesh_dim_names=("replicas", "shards"))
    net = fully_shard(model(), mesh=mesh)
    found: Told = []
    for step in range(STEPS):
        net.zero_grad()
        torch.manual_seed(1000 * rank + step)
        # Of a small loss the norm is below the limit, and nothing is clipped.
        (net(torch.randn(8, 24)).square().mean() * 10.0 ** (step % 5 - 3)).backward()
        before = _parts(net)
        torch.nn.utils.clip_grad_norm_(net.parameters(), MOST)
        found.append((before, _parts(net)))
    told.put((rank, found))
    dist.destroy_process_group()


def _parts(net: nn.Module) -> list[np.ndarray]:
    gradients = [p.grad for p in net.parameters()]
    assert all(isinstance(gradient, DTensor) for gradient in gradients)
    return [g.to_local().clone().numpy() for g in gradients if isinstance(g, DTensor)]


@pytest.fixture(scope="module")
def by_torch() -> list[Told]:
    """[shard] what torch made of it, in a process of its own each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = processes.get_context("fork")
    told = context.SimpleQueue()
    ranks = [context.Process(target=_rank, args=(rank, port, told)) for rank in range(SHARDS)]
    for one in ranks:
        one.start()
    found = dict(told.get() for _ in ranks)
    for one in ranks:
        one.join()
    return [found[rank] for rank in range(SHARDS)]


def flat(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([part.reshape(-1) for part in parts])


def test_each_shard_is_clipped_as_torch_clips_it(by_torch: list[Told]) -> None:
    clipped = 0
    for step in range(STEPS):
        before = [told[step][0] for told in by_torch]
        layouts = [
            Layout.of([(p.shape, torch.from_numpy(p).stride()) for p in parts]) for parts in before
        ]
        squares = [
            squared_norms(flat(parts), layout, None, threads=1)
            for parts, layout in zip(before, layouts, strict=True)
        ]
        for shard, (parts, layout) in enumerate(zip(before, layouts, strict=True)):
            own = clip_by_shards(flat(parts), layout, squares, MOST)
            assert own.tobytes() == flat(by_torch[shard][step][1]).tobytes()
            clipped += own.tobytes() != flat(parts).tobytes()
    assert 0 < clipped < SHARDS * STEPS
