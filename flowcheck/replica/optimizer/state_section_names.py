"""Names of the replica's flat arrays (sections), and the fingerprint of the optimizer's settings.
Does not import torch."""

from __future__ import annotations

import msgspec
import numpy as np
import xxhash

from flowcheck.config import OptimizerConfig
from flowcheck.replica.user_code import plain_text

PARAMETERS = "parameters"
"""Section of the parameters in the model's dtype."""
STEP_COUNT = "step"
"""Section of torch's step counters: one float32 per parameter, as torch keeps them
(torch/optim/optimizer.py, _get_scalar_dtype)."""
STEPPED = "stepped"
"""Section with one float32 per parameter: 1 if torch has a state for it. torch creates the state
in the first step of the parameter; a parameter that never had a gradient has none. Without an
optimizer: the step that the parameter's value belongs to."""
MASTER = "master"
"""Section of the master weights, if they have another dtype than the model."""
AVERAGE = "average"
"""Section of the moving averages of the parameters."""
AVERAGED = "n_averaged"
"""Section of the averages' update counter (torch.optim.swa_utils.AveragedModel, n_averaged)."""
SCALER = "scaler"
"""Section of the loss scaler: SCALER_NUMBERS as float64."""
SCALER_NUMBERS = ("scale", "growth_tracker", "skipped")
"""torch.amp.GradScaler's scale and growth tracker, and the number of steps it skipped."""
REPLICA_SECTIONS = (PARAMETERS, STEPPED, MASTER, AVERAGE, AVERAGED, SCALER)
"""Sections that are not states of torch's optimizer."""

GradientMask = np.ndarray | None
"""[parameters] bool: those that have a gradient in a step; None: all."""


def fingerprint(config: OptimizerConfig) -> bytes:
    """16 bytes (XXH3-128 of the JSON) that change with each optimizer setting. Settings at their
    default are left out, so that a setting added in a later release does not change existing
    fingerprints."""
    blank = {f.name: f.default for f in msgspec.structs.fields(OptimizerConfig)}
    stated = {
        key: value
        for key, value in msgspec.structs.asdict(config).items()
        if value != blank[key] and value not in ({}, ())
    }
    text = msgspec.json.encode(stated, order="sorted", enc_hook=plain_text)
    return xxhash.xxh3_128_digest(text)


def writes_gradient(config: OptimizerConfig) -> bool:
    """Whether a step may change the gradient array: by division, in-place scaling or clipping, or
    in the optimizer itself."""
    changed = (config.clip_norm, config.clip_value, config.scaler)
    if config.gradient_divisor != 1.0 or any(each is not None for each in changed):
        return True
    return config.rule.may_write_gradient(config)
