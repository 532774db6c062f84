"""Names of the replica's flat arrays (sections), and the fingerprint of the optimizer's
settings. No torch."""

from __future__ import annotations

import msgspec
import numpy as np
import xxhash

from flowcheck.config import OptimizerConfig
from flowcheck.replica.user_code import plain_text

PARAMETERS = "parameters"
"""The section that holds the parameters, as the model has them."""
STEP_COUNT = "step"
"""Counters of torch's, one for each parameter: float32, as torch keeps them (optimizer.py,
_get_scalar_dtype)."""
STEPPED = "stepped"
"""One float32 for each parameter, 1 where torch keeps a state of it: it makes it in the first step
that it takes, and of what never had a gradient it has none. Without an optimizer: the step that a
parameter is of."""
MASTER = "master"
"""The parameters in the type they are stepped in, where that is another."""
AVERAGE = "average"
"""Their moving averages."""
AVERAGED = "n_averaged"
"""How often those were updated (torch.optim.swa_utils.AveragedModel)."""
SCALER = "scaler"
"""The loss scale's own, SCALER_NUMBERS as float64."""
SCALER_NUMBERS = ("scale", "growth_tracker", "skipped")
"""torch.amp.GradScaler's two, and how many steps of the stream were none of the optimizer's."""
REPLICA_SECTIONS = (PARAMETERS, STEPPED, MASTER, AVERAGE, AVERAGED, SCALER)
"""Sections that are no states of torch's optimizer."""

GradientMask = np.ndarray | None
"""[parameters] bool: those that have a gradient in a step; None: all."""


def fingerprint(config: OptimizerConfig) -> bytes:
    """16 bytes that change with any setting; one that is as it is by default says nothing, so that
    a new kind of setting is none to a replica that was made before there was one."""
    blank = {f.name: f.default for f in msgspec.structs.fields(OptimizerConfig)}
    stated = {
        key: value
        for key, value in msgspec.structs.asdict(config).items()
        if value != blank[key] and value not in ({}, ())
    }
    text = msgspec.json.encode(stated, order="sorted", enc_hook=plain_text)
    return xxhash.xxh3_128_digest(text)


def writes_gradient(config: OptimizerConfig) -> bool:
    """Whether the gradient may be changed: divided, scaled in place, or by the rule itself."""
    changed = (config.clip_norm, config.clip_value, config.scaler)
    if config.gradient_divisor != 1.0 or any(each is not None for each in changed):
        return True
    return config.rule.may_write_gradient(config)
