"""A step as the trainer's own torch objects would hold it: what every format writes.

A replica keeps flat arrays; trainers load state dictionaries. Nothing that writes files looks at
the former, and nothing that takes steps at the latter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from flowcheck.config import OptimizerConfig
from flowcheck.replica.kept.snapshot import Snapshot
from flowcheck.replica.rules import optimizers
from flowcheck.replica.rules.schedule import rate_of


@dataclass(frozen=True, slots=True)
class Given:
    """One step. Tensors have the trainer's strides and may share memory with the snapshot: they are
    not to be written."""

    step: int
    """Optimizer steps taken."""
    digest: str
    """Of the replica's state at this step (kept/digest.py)."""
    rule: OptimizerConfig
    """What took the steps."""
    model: dict[str, torch.Tensor]
    """Parameters by the trainer's names, registration order, as the module holds them."""
    optimizer: dict[str, Any] | None
    """torch.optim.Optimizer.state_dict(): {"state": {number: {name: tensor}}, "param_groups"};
    None where the wire carries no optimizer state."""
    scheduler: dict[str, Any] | None = None
    """The scheduler's own state_dict(); None without one, or where its kind keeps none."""
    scaler: dict[str, Any] | None = None
    """torch.amp.GradScaler.state_dict()."""
    averages: dict[str, torch.Tensor] | None = None
    """Moving averages of the parameters, by the names of `model`."""
    older: dict[str, int] = field(default_factory=dict)
    """Parameters that are of another step, and which."""
    evidence: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    """What no observation could have contradicted."""


def given(
    snapshot: Snapshot, *, evidence: tuple[str, ...] = (), assumed: tuple[str, ...] = ()
) -> Given:
    """The step that a snapshot holds."""
    return Given(
        step=snapshot.step,
        digest=snapshot.digest,
        rule=snapshot.optimizer,
        model=dict(snapshot.parameters),
        optimizer=None if snapshot.parameters_only else _optimizer(snapshot),
        older=snapshot.older,
        evidence=evidence,
        assumed=assumed,
    )


def _optimizer(snapshot: Snapshot) -> dict[str, Any]:
    """State by number in registration order, and the groups as they stand before the next step."""
    built = optimizers.build(snapshot.optimizer, list(snapshot.parameters.values()))
    groups = built.state_dict()["param_groups"]
    rate = rate_of(snapshot.optimizer)(snapshot.step)
    for group in groups:
        group["lr"] = rate
        if snapshot.optimizer.schedule is not None:
            group["initial_lr"] = snapshot.optimizer.learning_rate
    return {
        "state": {index: dict(state) for index, state in enumerate(snapshot.states) if state},
        "param_groups": groups,
    }
