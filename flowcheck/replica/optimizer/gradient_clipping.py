"""What happens to gradients between reduction and step: conversion to the stepped dtype,
clipping by value or norm, also by a norm over several rings.

Of rings as Megatron-LM's distributed trainers do (megatron/core/optimizer/clip_grads.py,
get_grad_norm_fp32 and clip_grad_by_total_norm_fp32): each ring squares the norm of its own, the
squares are summed in float32 over the ranks, and the root is taken, and held against the most that
is allowed, in double. Of two squares the sum is the same in either order; of more the last bits
depend on NCCL's: every order is tried, and most of the time all give the same factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.parameter_layouts import GRADIENT_BYTES
from flowcheck.findings.catalog.replica_state_errors import TRAINER_ENDS
from flowcheck.replica.flat_tensors import FlatValues, flat_gradient, parameter_views
from flowcheck.replica.optimizer.state_section_names import GradientMask
from flowcheck.replica.param_layout import Layout


def gradient_as_stepped(values: FlatValues, layout: Layout, inner: Layout) -> torch.Tensor:
    """Gradients as they were reduced, flat in the layout of what is stepped (`inner`),
    over the same memory where they are so already. Raises StateError for another size."""
    if inner is layout:
        return flat_gradient(values, layout)
    source = values if isinstance(values, np.ndarray) else np.frombuffer(values, np.uint8)
    raw = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
    if raw.size != layout.gradient_bytes:
        raise StateError(GRADIENT_BYTES(bytes=raw.size, expected=layout.gradient_bytes))
    flat = torch.empty(inner.elements, dtype=getattr(torch, inner.dtype))
    at = 0
    for parameter, own in zip(layout.parameters, inner.parameters, strict=True):
        wire = getattr(torch, layout.gradient_dtype or layout.dtype_of(parameter))
        size = parameter.elements * wire.itemsize
        # Tensor.float() of each, as scripts hand gradients to masters.
        flat[own.start : own.stop].copy_(torch.from_numpy(raw[at : at + size].copy()).view(wire))
        at += size
    return flat


def clip_gradients(config: OptimizerConfig, leaves: Sequence[torch.Tensor]) -> None:
    """As torch.nn.utils does, in the script's order. Raises StateError where the script ends."""
    norm = config.clip_norm is not None and not config.clip_together
    value = config.clip_value is not None
    if value and config.clip_value_first:
        _clip_value(config, leaves)
    if norm:
        _clip_norm(config, leaves)
    if value and not config.clip_value_first:
        _clip_value(config, leaves)


def has_clipping(config: OptimizerConfig) -> bool:
    """The script clips, of its own parameters alone."""
    norm = config.clip_norm is not None and not config.clip_together
    return norm or config.clip_value is not None


def _clip_norm(config: OptimizerConfig, leaves: Sequence[torch.Tensor]) -> None:
    assert config.clip_norm is not None
    try:
        torch.nn.utils.clip_grad_norm_(
            leaves,
            config.clip_norm,
            norm_type=config.clip_norm_type,
            error_if_nonfinite=config.clip_error_if_nonfinite,
        )
    except RuntimeError as error:
        raise StateError(TRAINER_ENDS(error)) from error


def _clip_value(config: OptimizerConfig, leaves: Sequence[torch.Tensor]) -> None:
    assert config.clip_value is not None
    torch.nn.utils.clip_grad_value_(leaves, config.clip_value)


EPSILON = 1.0e-6
"""Beside the norm that is divided by; torch's clip_grad_norm_ has the same."""


def clip_factor(gradients: Sequence[torch.Tensor], most: float, *, threads: int) -> float:
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
    return factor_of_norm(norm, most)


def factor_of_norm(norm: torch.Tensor, most: float) -> float:
    """A float32, as `clip_factor`. norm: a float32, of all gradients."""
    return float(torch.clamp(most / (norm + EPSILON), max=1.0))


def squared_norm(
    gradient: np.ndarray, layout: Layout, used: GradientMask, *, threads: int
) -> float:
    """Of the norm of a ring's own gradients, a float32. gradient: flat, as it was reduced, never
    written; used: [parameters] bool, those that have one; threads: torch's in the trainer."""
    own = parameter_views(flat_gradient(gradient, layout), layout)
    taken = [
        g for g, has in zip(own, np.ones(len(own)) if used is None else used, strict=True) if has
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return float(torch.nn.utils.get_total_norm(taken) ** 2.0)
    finally:
        torch.set_num_threads(before)


def clip_by_total_norm(
    gradient: np.ndarray, layout: Layout, total: float, most: float
) -> np.ndarray:
    """The gradient scaled where the norm of all rings is above `most`; else itself. total: of
    their squares."""
    coefficient = most / (total**0.5 + EPSILON)
    if not coefficient < 1.0:
        return gradient
    return flat_gradient(gradient, layout).clone().mul_(coefficient).numpy()


def sum_float32(squares: Sequence[float]) -> float:
    """In float32, one after the other."""
    total = np.float32(squares[0])
    with np.errstate(over="ignore", invalid="ignore"):
        for square_of_one in squares[1:]:
            total = np.float32(total + np.float32(square_of_one))
    return float(total)


def is_order_independent(squares: Sequence[float], most: float) -> bool:
    """Whether the gradients are multiplied by the same float32, in whatever order and by whatever
    tree the squares are summed."""
    if not all(map(math.isfinite, squares)):
        return True  # the sum is no finite number in any order, and nothing is multiplied
    one, other = (_factor(total, most) for total in float32_sum_bounds(squares))
    return bool(one == other)


def _factor(total: float, most: float) -> np.float32:
    """As torch hands it to the kernel."""
    return np.float32(min(1.0, most / (total**0.5 + EPSILON)))


def float32_sum_bounds(squares: Sequence[float]) -> tuple[float, float]:
    """The least and the most that a float32 sum of them can be: a sum of two rises with each, so
    that of every subset its least and most are made of those of its two parts."""
    least = np.zeros(1 << len(squares), np.float32)
    for place, own in enumerate(squares):
        least[1 << place] = own
    most = least.copy()
    with np.errstate(over="ignore"):
        for whole, starts, one, other in _splits(len(squares)):
            least[whole] = np.minimum.reduceat(least[one] + least[other], starts)
            most[whole] = np.maximum.reduceat(most[one] + most[other], starts)
    return float(least[-1]), float(most[-1])


@cache
def _splits(count: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """By size from two on: subsets of so many as bits, where each one's begin, and all the ways to
    part them in two."""
    found = []
    for size in range(2, count + 1):
        wholes = [s for s in range(1 << count) if s.bit_count() == size]
        starts: list[int] = []
        one: list[tuple[int, int]] = []
        for whole in wholes:
            starts.append(len(one))
            part = (whole - 1) & whole
            while part:
                if part > whole - part:
                    one.append((part, whole - part))
                part = (part - 1) & whole
        pairs = np.array(one)
        found.append((np.array(wholes), np.array(starts), pairs[:, 0], pairs[:, 1]))
    return found
