"""The trainer's loss scale: torch.amp.GradScaler with the numbers that the replica keeps.

What crosses the wire are gradients of the scaled loss. Where one of them is inf or NaN the
optimizer's step is skipped: the step of the stream changes nothing but the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from flowcheck.config import OptimizerConfig, ScalerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import HALF_UNSCALED
from flowcheck.replica.optimizer.gradient_clipping import has_clipping
from flowcheck.replica.param_layout import SEVERAL, Layout


def check_scaler(config: OptimizerConfig, inner: Layout) -> None:
    """inner: of what is stepped. Raises ConfigError where torch would refuse its gradients
    (torch/amp/grad_scaler.py, _unscale_grads_)."""
    types = {inner.dtype_of(p) for p in inner.parameters} if inner.dtype == SEVERAL else inner.dtype
    if config.scaler is not None and "float16" in types:
        raise ConfigError("optimizer.scaler", config.scaler.init_scale, HALF_UNSCALED())


def scaled_step(
    config: OptimizerConfig,
    optimizers: Sequence[torch.optim.Optimizer],
    numbers: np.ndarray,
    clip: Callable[[], None],
) -> list[bool]:
    """Unscales, clips, steps and updates the scale, as scripts do. [optimizer] False: its step was
    skipped, as one of its own gradients was inf or NaN.

    numbers: optimizers.SCALER_NUMBERS, float64, in place. Gradients are set and in place.
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
