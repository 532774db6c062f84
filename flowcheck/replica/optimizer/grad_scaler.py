"""The trainer's loss scaling: torch.amp.GradScaler on the scale and counters that the replica
stores. The gradients on the wire are those of the scaled loss. If one of them is inf or NaN the
optimizer step is skipped; then only the scale changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from flowcheck.config import OptimizerConfig, ScalerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import HALF_UNSCALED
from flowcheck.replica.optimizer.gradient_clipping import has_clipping
from flowcheck.replica.param_layout import SEVERAL_DTYPES, Layout


def check_scaler(config: OptimizerConfig, inner: Layout) -> None:
    """Raises ConfigError where torch's GradScaler does not support the gradients' dtype
    (torch/amp/grad_scaler.py, _unscale_grads_). inner: layout of the tensors that the optimizer
    steps."""
    types = (
        {inner.dtype_of(p) for p in inner.parameters}
        if inner.dtype == SEVERAL_DTYPES
        else inner.dtype
    )
    if config.scaler is not None and "float16" in types:
        raise ConfigError("optimizer.scaler", config.scaler.init_scale, HALF_UNSCALED())


def scaled_step(
    config: OptimizerConfig,
    optimizers: Sequence[torch.optim.Optimizer],
    numbers: np.ndarray,
    clip: Callable[[], None],
) -> list[bool]:
    """Unscales and clips the gradients, steps the optimizers and updates the scale, as training
    scripts do. Returns [optimizer] whether it stepped; False if one of its gradients was inf or
    NaN.

    numbers: float64, as SCALER_NUMBERS in state_section_names.py; updated in place.
    clip: called after unscaling; clips the gradients in place.
    The gradients are the parameters' .grad and are changed in place.
    """
    stated = config.scaler
    assert stated is not None
    scaler = _scaler(stated, numbers)
    unscale = has_clipping(config) if stated.unscale is None else stated.unscale
    if unscale:
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
    clip()
    stepped = []
    for optimizer in optimizers:
        scaler.step(optimizer)
        found = scaler._found_inf_per_device(optimizer)
        stepped.append(not any(float(inf) for inf in found.values()))
    scaler.update()
    before, now = numbers[0], scaler.get_scale()
    told = scaler.state_dict()
    numbers[0], numbers[1] = now, told["_growth_tracker"]
    numbers[2] += now < before
    return stepped


def _scaler(stated: ScalerConfig, numbers: np.ndarray) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(
        {
            "scale": float(numbers[0]),
            "growth_factor": stated.growth_factor,
            "backoff_factor": stated.backoff_factor,
            "growth_interval": stated.growth_interval,
            "_growth_tracker": int(numbers[1]),
        }
    )
    scaler.scale(torch.zeros(()))  # it makes its tensors in the first call
    return scaler
