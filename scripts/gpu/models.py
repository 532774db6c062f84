"""The small models that `train.py` trains, as factories for a job file's `[model]`."""

from __future__ import annotations

import torch
from torch import nn


class Odd(nn.Module):
    """Odd sizes, a scalar that is first registered and last used, a layer without bias.

    width: of the hidden layers; norm: BatchNorm with its buffers in place of LayerNorm; scalar: the
    scale has no dimension (FSDP takes none such)."""

    def __init__(
        self, width: int = 45, norm: bool = False, depth: int = 2, scalar: bool = True
    ) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5) if scalar else torch.tensor([1.5]))
        self.first = nn.Linear(13, width)
        self.norm = nn.BatchNorm1d(width) if norm else nn.LayerNorm(width)
        self.middle = nn.ModuleList(nn.Linear(width, width, bias=n % 2 == 0) for n in range(depth))
        self.last = nn.Linear(width, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(torch.relu(self.first(x)))
        for layer in self.middle:
            x = x + torch.tanh(layer(x))
        return self.last(x) * self.scale


def small() -> Odd:
    return Odd()


def batch_norm() -> Odd:
    return Odd(norm=True)


def without_scalar() -> Odd:
    return Odd(scalar=False)


def width_60() -> Odd:
    return Odd(60, scalar=False)


def width_90() -> Odd:
    return Odd(90)


def width_100() -> Odd:
    return Odd(100)


def width_110() -> Odd:
    return Odd(110)


def deep_180() -> Odd:
    return Odd(180, depth=3)


def deep_250() -> Odd:
    return Odd(250, depth=3)
