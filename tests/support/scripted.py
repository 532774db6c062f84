"""A training script of plain torch, and the replica that is to follow it: the script never goes
through code of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from flowcheck.config import OptimizerConfig
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout

Make = Callable[[nn.Module], torch.optim.Optimizer]


class Mixed(nn.Module):
    """One number, vectors, matrices, a channels_last kernel, and a weight with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(()))
        self.one = nn.Parameter(torch.randn(1))
        self.conv = nn.Conv2d(5, 6, 3)
        self.embed = nn.Embedding(13, 7)
        self.norm = nn.LayerNorm(7)
        self.head = nn.Linear(7, 13, bias=False)
        self.head.weight = self.embed.weight
        self.big = nn.Parameter(torch.randn(1001))
        self.to(memory_format=torch.channels_last)


class Matrices(nn.Module):
    """What Muon takes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(7, 12, bias=False), nn.Linear(12, 3, bias=False)


def flat(tensors: Iterable[torch.Tensor]) -> bytes:
    """As buckets hold them: registration order, memory order."""
    parts = [torch.as_strided(t.detach(), (t.numel(),), (1,)).view(torch.uint8) for t in tensors]
    return torch.cat(parts).numpy().tobytes()


@dataclass
class Script:
    """What a user's training loop does between two all-reduces, and behind the second."""

    make: Make
    kind: type[nn.Module] = Mixed
    dtype: torch.dtype = torch.float32
    seed: int = 1
    net: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    step_behind: Callable[[], None] = lambda: None
    """scheduler.step(), and whatever else follows."""

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.net = self.kind().to(self.dtype)
        self.optimizer = self.make(self.net)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.net.parameters())

    def layout(self) -> Layout:
        named = dict(self.net.named_parameters())
        shapes = [(tuple(p.shape), p.stride()) for p in named.values()]
        dtype = str(self.dtype).removeprefix("torch.")
        return Layout.of(shapes, names=list(named), dtype=dtype)

    def backward(self) -> bytes:
        """Gradients as they were reduced."""
        for p in self.parameters:
            magnitude = torch.exp(torch.randn(()) * 3)
            p.grad = (torch.randn_like(p, dtype=torch.float32) * magnitude).to(p.dtype)
        return flat(p.grad for p in self.parameters if p.grad is not None)

    def step(self) -> None:
        self.optimizer.step()
        self.step_behind()


def replica_of(script: Script, config: OptimizerConfig, path: Path) -> Replica:
    weights = np.frombuffer(flat(script.parameters), np.uint8)
    return Replica.create(path, script.layout(), config, weights)


def same(replica: Replica, script: Script, stepped: Sequence[torch.Tensor] | None = None) -> None:
    """Every bit of the model and of the optimizer's state. stepped: what the script's optimizer was
    given, where that is not its model's own parameters."""
    assert replica.parameters().tobytes() == flat(script.parameters)
    own = script.optimizer.state
    mine = replica.states()
    for index, p in enumerate(stepped or script.parameters):
        theirs = {k: v for k, v in own.get(p, {}).items() if v is not None}
        ours = mine[index]
        assert ours.keys() == theirs.keys(), (index, ours.keys(), theirs.keys())
        for name, value in theirs.items():
            if not isinstance(value, torch.Tensor):
                assert (type(ours[name].value), ours[name].value) == (type(value), value)
                continue
            assert ours[name].tensor.dtype == value.dtype
            assert flat([ours[name].tensor]) == flat([value]), (replica.step, index, name)
