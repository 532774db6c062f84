"""torch loads half of itself, seconds of it, with the first optimizer it builds: when we say so."""

from __future__ import annotations

import torch


def load_torch() -> None:
    """Takes one step of one element, so that the first real one is not late."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.0).step()
