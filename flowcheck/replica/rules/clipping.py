"""Clipping by a norm: torch's own over one model, and one over the parameters of two rings.

Of two rings as Megatron-LM's distributed trainers do (megatron/core/optimizer/clip_grads.py,
get_grad_norm_fp32 and clip_grad_by_total_norm_fp32): each ring squares the norm of its own, the
squares are summed in float32 over the ranks, and the root is taken, and held against the most that
is allowed, in double. Of two squares the sum is the same in either order; of more it is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from flowcheck.replica.layout import Layout
from flowcheck.replica.rules.optimizers import Used
from flowcheck.replica.tensors import flat_gradient, views

EPSILON = 1.0e-6
"""Beside the norm that is divided by; torch's clip_grad_norm_ has the same."""


def factor(gradients: Sequence[torch.Tensor], most: float, *, threads: int) -> float:
    """A float32: what the gradients are to be multiplied by (torch/nn/utils/clip_grad.py,
    _clip_grads_with_norm_). threads: torch's in the trainer; a norm's last bits depend on them."""
    if not gradients:
        return 1.0
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        norm = torch.nn.utils.get_total_norm(gradients)
    finally:
        torch.set_num_threads(before)
    return float(torch.clamp(most / (norm + EPSILON), max=1.0))


def square(gradient: np.ndarray, layout: Layout, used: Used, *, threads: int) -> float:
    """Of the norm of a ring's own gradients, a float32. gradient: flat, as it was reduced, never
    written; used: [parameters] bool, those that have one; threads: torch's in the trainer."""
    own = views(flat_gradient(gradient, layout), layout)
    taken = [
        g for g, has in zip(own, np.ones(len(own)) if used is None else used, strict=True) if has
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return float(torch.nn.utils.get_total_norm(taken) ** 2.0)
    finally:
        torch.set_num_threads(before)


def clipped(
    gradient: np.ndarray, layout: Layout, squares: tuple[float, float], most: float
) -> np.ndarray:
    """The gradient scaled where the norm of both rings is above `most`; else itself."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.float32(squares[0]) + np.float32(squares[1]))
    coefficient = most / (total**0.5 + EPSILON)
    if not coefficient < 1.0:
        return gradient
    return flat_gradient(gradient, layout).clone().mul_(coefficient).numpy()
