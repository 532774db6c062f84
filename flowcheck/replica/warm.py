"""torch loads half of itself, seconds of it, with the first optimizer it makes: when we say so."""

from __future__ import annotations

import torch

from flowcheck.config import OptimizerConfig
from flowcheck.replica.rules.lean import leave_compiler_out

ONE_PASS = ("sgd", "adam", "adamw")
"""Rules that C steps as a rule (replica/rules/onepass.py)."""


def load_torch(config: OptimizerConfig | None = None) -> None:
    """So that the first optimizer is not late. config: whose steps are taken here; where torch
    takes them, it is asked for one of one element, which loads its compiler as well."""
    leave_compiler_out()
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    if config is not None and not _is_one_pass(config):
        optimizer.step()


def _is_one_pass(config: OptimizerConfig) -> bool:
    """Guessed: a step of C that is found unfit later has its first one late, and nothing else."""
    parts = config.parts
    alone = len(parts) == 1 and config.factory is None
    return alone and config.name.lower() in ONE_PASS and config.kernels != "fused"
