"""The one tree of settings: typed, with units and reasons; TOML in, checked values out."""

from __future__ import annotations

from typing import Literal

import msgspec


class OptimizerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The trainer's optimizer, as its script states it; nothing of this crosses the wire."""

    name: Literal["sgd", "adam", "adamw"]
    implementation: Literal["loop", "foreach", "fused"] = "loop"
    """Which of torch's arithmetics the trainer runs; they round differently. CPU default: loop."""
    learning_rate: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float | None = None
    """None: torch's own default for the optimizer (0 for SGD and Adam, 0.01 for AdamW)."""
    amsgrad: bool = False
    maximize: bool = False
