"""What a training script does to gradients between their reduction and the optimizer's step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.replica.elements import Flat
from flowcheck.replica.layout import Layout
from flowcheck.replica.tensors import flat_gradient


def taken(values: Flat, layout: Layout, inner: Layout) -> torch.Tensor:
    """Gradients as they were reduced, flat in the layout of what is stepped (rules/masters.py),
    over the same memory where they are so already. Raises StateError for another size."""
    if inner is layout:
        return flat_gradient(values, layout)
    source = values if isinstance(values, np.ndarray) else np.frombuffer(values, np.uint8)
    raw = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
    if raw.size != layout.gradient_bytes:
        raise StateError(
            f"gradient: {raw.size} bytes given, the layout has {layout.gradient_bytes}"
        )
    flat = torch.empty(inner.elements, dtype=getattr(torch, inner.dtype))
    at = 0
    for parameter, own in zip(layout.parameters, inner.parameters, strict=True):
        wire = getattr(torch, layout.gradient_dtype or layout.dtype_of(parameter))
        size = parameter.elements * wire.itemsize
        # Tensor.float() of each, as scripts hand gradients to masters.
        flat[own.start : own.stop].copy_(torch.from_numpy(raw[at : at + size].copy()).view(wire))
        at += size
    return flat


def clip(config: OptimizerConfig, leaves: Sequence[torch.Tensor]) -> None:
    """As torch.nn.utils does, in the script's order. Raises StateError where the script ends."""
    norm = config.clip_norm is not None and not config.clip_together
    value = config.clip_value is not None
    if value and config.clip_value_first:
        _clip_value(config, leaves)
    if norm:
        _clip_norm(config, leaves)
    if value and not config.clip_value_first:
        _clip_value(config, leaves)


def clips(config: OptimizerConfig) -> bool:
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
        raise StateError(f"the trainer ends here: {error}") from error


def _clip_value(config: OptimizerConfig, leaves: Sequence[torch.Tensor]) -> None:
    assert config.clip_value is not None
    torch.nn.utils.clip_grad_value_(leaves, config.clip_value)
