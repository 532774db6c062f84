"""Moving averages of the weights (SWA, EMA), by torch's own functions
(torch/optim/swa_utils.py, AveragedModel.update_parameters)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim import swa_utils

from flowcheck.config import AverageConfig
from flowcheck.step_numbers import Step

_of_one: Any = swa_utils.get_swa_avg_fn
_alone: Any = _of_one()
_swa: Any = swa_utils.get_swa_multi_avg_fn
_ema: Any = swa_utils.get_ema_multi_avg_fn


def _function(config: AverageConfig) -> Callable[..., None]:
    made: Callable[..., None] = _swa() if config.decay is None else _ema(config.decay)
    return made


def averages_due(config: AverageConfig, step: Step, *, stepped: bool) -> bool:
    """Whether the script calls update_parameters() after this step. stepped: False if a loss
    scaler skipped an optimizer."""
    if step < config.start or (step - config.start) % config.every:
        return False
    return stepped or config.when_skipped


def update_averages(
    config: AverageConfig,
    averages: Sequence[torch.Tensor],
    parameters: Sequence[torch.Tensor],
    averaged: np.ndarray,
) -> None:
    """Updates the averages in place. averaged: [1] int64, n_averaged; the first update copies the
    parameters."""
    count = torch.tensor(int(averaged[0]), dtype=torch.long)
    pairs = list(zip(averages, parameters, strict=True))
    if not averaged[0]:
        for average, parameter in pairs:
            average.copy_(parameter)
    elif config.decay is None and not config.foreach:
        for average, parameter in pairs:
            average.copy_(_alone(average, parameter, count))
    else:
        function = _function(config)
        for dtype in dict.fromkeys(average.dtype for average in averages):
            own = [(a, p) for a, p in pairs if a.dtype == dtype]
            function([a for a, _ in own], [p for _, p in own], count)
    averaged[0] += 1
