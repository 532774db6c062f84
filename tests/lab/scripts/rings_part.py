"""What each ring of rings.py holds where all hold the same (`alike`)."""

import torch
from torch import nn


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = nn.Linear(48, 24), nn.Linear(24, 48, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.columns(self.rows(x).relu())


def make() -> nn.Module:
    """With `own`."""
    return nn.Sequential(Part(), Part(), nn.Linear(48, 10))


def make_wrapped() -> nn.Module:
    """With DistributedDataParallel."""
    return nn.Sequential(Part(), Part())


def loss(model: nn.Module) -> torch.Tensor:
    return model(torch.zeros(8, 48)).square().mean()
