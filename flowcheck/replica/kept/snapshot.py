"""A consistent copy of a replica that another process goes on stepping.

The updater writes only to a copy that it first says is whole no longer, and that is the oldest
one; the digest proves that nothing moved while a copy was read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.replica import checkpoint
from flowcheck.replica.kept.digest import state_digest, tensor_digests
from flowcheck.replica.kept.header import Commit
from flowcheck.replica.kept.peek import read_copy
from flowcheck.replica.layout import Layout
from flowcheck.replica.rules import optimizers
from flowcheck.replica.rules.placed import older
from flowcheck.replica.tensors import flat_tensor, views

ATTEMPTS = 16
"""Reads before giving up: each may be overtaken by two steps of the updater."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One step of a replica in memory; tensors have the trainer's strides.

    states: per parameter in registration order, {torch's state name: tensor}; {} where torch has
    none (before its first step, or SGD without momentum).
    """

    step: int
    digest: str
    layout: Layout
    optimizer: OptimizerConfig
    parameters: dict[str, torch.Tensor]
    states: tuple[dict[str, torch.Tensor], ...]
    older: dict[str, int] = field(default_factory=dict)
    """Parameters that are of another step, and which."""

    @property
    def parameters_only(self) -> bool:
        """Nothing is known of an optimizer's state."""
        return self.optimizer.name == "none"


def of_state(path: Path, optimizer: OptimizerConfig, step: int | None = None) -> Snapshot:
    """A step of the state file at `path`, whoever is writing it; the newest by default.

    Raises RingError where there is no state, StateError where it was made with other optimizer
    settings, does not hold the step, or never held still for as long as a copy takes.
    """
    for _ in range(ATTEMPTS):
        commit, layout, sections = read_copy(path, step)
        if commit.fingerprint != optimizers.fingerprint(optimizer):
            raise StateError(f"{path}: this replica was made with other optimizer settings")
        named = optimizers.named_tensors(sections, layout)
        if state_digest(named, tensor_digests(a for _, a in named)) == commit.digest:
            return _assembled(commit, layout, optimizer, sections)
    raise StateError(
        f"{path}: no step held still in {ATTEMPTS} reads; its bytes do not have their digest"
    )


def of_checkpoint(folder: Path) -> Snapshot:
    """The step a checkpoint folder holds. Raises StateError where it is not whole."""
    kept = checkpoint.load(folder)
    manifest = kept.manifest
    return Snapshot(
        manifest.step,
        manifest.digest,
        manifest.layout,
        manifest.optimizer,
        kept.parameters,
        kept.states,
        manifest.older,
    )


def _assembled(
    commit: Commit, layout: Layout, optimizer: OptimizerConfig, sections: dict[str, np.ndarray]
) -> Snapshot:
    def tensors(name: str) -> list[torch.Tensor]:
        return views(flat_tensor(sections[name], layout), layout)

    held = optimizers.have_state(
        optimizer, sections, len(layout.parameters), stepped=commit.has_optimizer_state
    )
    states: list[dict[str, torch.Tensor]] = [{} for _ in layout.parameters]
    for name in optimizers.state_names(optimizer):
        for index, tensor in enumerate(tensors(name)):
            if held[index]:
                states[index][name] = tensor
    if optimizers.counts_steps(optimizer):
        for index, count in enumerate(sections[optimizers.STEP_COUNT]):
            if held[index]:
                states[index][optimizers.STEP_COUNT] = torch.tensor(float(count))
    values = tensors(optimizers.PARAMETERS)
    named = {p.name: v for p, v in zip(layout.parameters, values, strict=True)}
    left = older(optimizer, layout, sections, commit.step)
    return Snapshot(commit.step, commit.digest.hex(), layout, optimizer, named, tuple(states), left)
