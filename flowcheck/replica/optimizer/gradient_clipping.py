"""What happens to gradients between all-reduce and optimizer step: conversion to the stepped
dtype, clipping by value or by norm, also by a norm over several rings.

Over several rings it works as in Megatron-LM (megatron/core/optimizer/clip_grads.py,
get_grad_norm_fp32 and clip_grad_by_total_norm_fp32): each ring squares its norm, the squares are
summed in float32 over the ranks, and the root and the comparison with the limit are in double. A
sum of two squares does not depend on their order. For more, the last bits depend on the order in
which NCCL adds; all orders are tried here, and usually all give the same factor.
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
from flowcheck.replica.optimizer.zero_clipping import clip_as_zero
from flowcheck.replica.param_layout import Layout


def gradient_as_stepped(values: FlatValues, layout: Layout, inner: Layout) -> torch.Tensor:
    """Reduced gradients in the layout of the tensors that the optimizer steps (`inner`): a flat
    tensor [inner.elements] in inner's dtype. Shares memory with `values` if no conversion is
    needed. Raises StateError for a wrong size."""
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
    """Clips the gradients in place with torch.nn.utils, in the order of the training script.
    leaves: parameters whose .grad is set. Raises StateError where the norm is not finite and the
    script would stop (error_if_nonfinite)."""
    if config.sharded_groups:
        clip_as_zero(config, leaves)
        return
    norm = config.clip_norm is not None and not config.clip_together
    value = config.clip_value is not None
    if value and config.clip_value_first:
        _clip_value(config, leaves)
    if norm:
        _clip_norm(config, leaves)
    if value and not config.clip_value_first:
        _clip_value(config, leaves)


def has_clipping(config: OptimizerConfig) -> bool:
    """Whether the script clips by value, or by a norm over this ring's own parameters."""
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
"""Added to the norm before the division, as in torch's clip_grad_norm_."""


def clip_factor(gradients: Sequence[torch.Tensor], most: float, *, threads: int) -> float:
    """Factor by which clipping multiplies the gradients, a float32 value of at most 1
    (torch/nn/utils/clip_grad.py, _clip_grads_with_norm_).

    most: max_norm.
    threads: torch's thread count in the trainer; the last bits of a norm depend on it.
    """
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
    """Squared L2 norm of the gradients of one ring, as a float32 value.

    gradient: flat, as it was reduced; not changed.
    used: [parameters] bool, those that have a gradient; None: all.
    threads: torch's thread count in the trainer; the last bits of a norm depend on it.
    """
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


def squared_norms(
    gradient: np.ndarray, layout: Layout, used: GradientMask, *, threads: int
) -> list[float]:
    """[parameter with a gradient] squared L2 norm of one shard's part of it, as a float32 value.
    Arguments: as `squared_norm` takes them.

    Source: torch 2.13, torch/nn/utils/clip_grad.py (_get_total_norm) over DTensors of hybrid
    sharding: each parameter's norm is partial on the shard ranks, and is squared before they are
    summed (torch/distributed/tensor/_ops/_math_ops.py, _NormPartial)."""
    own = parameter_views(flat_gradient(gradient, layout), layout)
    taken = [g for n, g in enumerate(own) if used is None or used[n]]
    if not taken:
        return []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        norms = torch.stack(list(torch._foreach_norm(taken, 2.0)))
    finally:
        torch.set_num_threads(before)
    return [float(square) for square in norms**2.0]


def clip_by_shards(
    gradient: np.ndarray, layout: Layout, squares: Sequence[Sequence[float]], most: float
) -> np.ndarray:
    """`gradient` as torch.nn.utils.clip_grad_norm_ clips it over all shards, as a new array.
    squares: [shard, in the order in which their ranks are summed] `squared_norms`; most:
    max_norm. Source: as of `squared_norms`; the root of each sum is _NormPartial's too."""
    total = torch.tensor(squares[0], dtype=torch.float32)
    for own in squares[1:]:
        total = total + torch.tensor(own, dtype=torch.float32)
    norm = torch.linalg.vector_norm(total ** (1.0 / 2.0), 2.0)
    factor = torch.clamp(most / (norm + EPSILON), max=1.0)
    return flat_gradient(gradient, layout).clone().mul_(factor).numpy()


def clip_by_total_norm(
    gradient: np.ndarray, layout: Layout, total: float, most: float
) -> np.ndarray:
    """`gradient` multiplied by most / (norm + EPSILON) if that is less than 1, as a new array;
    else `gradient` itself. total: sum of the squared norms of all rings; most: max_norm."""
    coefficient = most / (total**0.5 + EPSILON)
    if not coefficient < 1.0:
        return gradient
    return flat_gradient(gradient, layout).clone().mul_(coefficient).numpy()


def sum_float32(squares: Sequence[float]) -> float:
    """Sum of the numbers in float32, from left to right."""
    total = np.float32(squares[0])
    with np.errstate(over="ignore", invalid="ignore"):
        for square_of_one in squares[1:]:
            total = np.float32(total + np.float32(square_of_one))
    return float(total)


def is_order_independent(squares: Sequence[float], most: float) -> bool:
    """Whether clipping multiplies the gradients by the same float32, whatever the order and tree
    in which NCCL sums the squares. most: max_norm."""
    if not all(map(math.isfinite, squares)):
        return True  # the sum is no finite number in any order, and nothing is multiplied
    one, other = (_factor(total, most) for total in float32_sum_bounds(squares))
    return bool(one == other)


def _factor(total: float, most: float) -> np.float32:
    """The factor as torch passes it to its kernel."""
    return np.float32(min(1.0, most / (total**0.5 + EPSILON)))


def float32_sum_bounds(squares: Sequence[float]) -> tuple[float, float]:
    """(smallest, largest) float32 sum of the numbers over all orders and trees. Rounded addition
    is monotonic, so the extreme sums of a set are made from the extreme sums of its two parts."""
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
