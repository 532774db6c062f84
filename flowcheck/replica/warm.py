"""torch loads half of itself, seconds of it, with the first optimizer it makes: when we say so."""

from __future__ import annotations

import torch

from flowcheck.replica.rules.lean import leave_compiler_out


def load_torch(*, steps: bool = False) -> None:
    """So that the first optimizer is not late. steps: nor the first step that torch takes itself,
    with which it loads its compiler."""
    leave_compiler_out()
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    if steps:
        optimizer.step()
