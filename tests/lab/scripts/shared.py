"""Layers of which each rank of a group holds a part, as Megatron-LM's tensor parallelism has it."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def summed(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Over the ranks of `group`; as it is where there is none."""
    made = x.contiguous().clone()
    if group is not None:
        dist.all_reduce(made, group=group)
    return made


class Forth(torch.autograd.Function):
    """Summed on the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return summed(gradient, ctx.group), None


class Back(torch.autograd.Function):
    """Summed on the way there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Shared(nn.Module):
    """Two linear layers of which this rank holds `own` rows and columns."""

    def __init__(self, wide: int, own: int, group: Any) -> None:
        super().__init__()
        self.rows, self.columns = nn.Linear(wide, own), nn.Linear(own, wide, bias=False)
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.rows(Forth.apply(x, self.group)).relu()
        return x + Back.apply(self.columns(inner), self.group)
