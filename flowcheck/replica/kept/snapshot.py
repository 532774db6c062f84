"""A consistent copy of a replica that another process goes on stepping.

The updater writes only to a copy that it first says is whole no longer, the oldest one that nobody
reads (pins.py); the digest proves that nothing moved while a copy was read.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.replica.kept.digest import state_digest, tensor_digests
from flowcheck.replica.kept.header import Commit
from flowcheck.replica.kept.peek import ATTEMPTS, Pinned, pinned, read_copy
from flowcheck.replica.layout import Layout
from flowcheck.replica.rules import optimizers
from flowcheck.replica.rules.placed import older
from flowcheck.replica.tensors import flat_tensor, views


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
        _check_made_with(path, commit, optimizer)
        if _has_its_digest(commit, layout, sections):
            return _assembled(commit, layout, optimizer, sections)
    raise StateError(
        f"{path}: no step held still in {ATTEMPTS} reads; its bytes do not have their digest"
    )


@contextmanager
def held(path: Path, optimizer: OptimizerConfig, step: int | None = None) -> Iterator[Snapshot]:
    """As `of_state`, without a copy where the file has a version to spare: its tensors lie in
    shared memory then, not to be written, and the updater leaves them alone until the end of the
    `with`. Without one it is the copy that `of_state` makes.

    Raises what `of_state` does, and StateError at the end where the step did not hold still after
    all, because other readers hold all other copies: what was made of it is worth nothing then.
    """
    with pinned(path, step) as found:
        if found.spare:
            _check_made_with(path, found.commit, optimizer)
            if not _has_its_digest(found.commit, found.layout, found.sections):
                raise StateError(
                    f"{path}: the bytes of step {found.commit.step} do not have their digest"
                )
            yield _in_place(found, optimizer)
            if not found.still:
                raise StateError(
                    f"{path}: step {found.commit.step} was overwritten while it was read, for "
                    "other readers hold the other steps: make replica.keep_bytes larger"
                )
            return
    yield of_state(path, optimizer, step)


def _check_made_with(path: Path, commit: Commit, optimizer: OptimizerConfig) -> None:
    if commit.fingerprint != optimizers.fingerprint(optimizer):
        raise StateError(f"{path}: this replica was made with other optimizer settings")


def _has_its_digest(commit: Commit, layout: Layout, sections: dict[str, np.ndarray]) -> bool:
    named = optimizers.named_tensors(sections, layout)
    return state_digest(named, tensor_digests(a for _, a in named)) == commit.digest


def _in_place(found: Pinned, optimizer: OptimizerConfig) -> Snapshot:
    with warnings.catch_warnings():
        # torch has no tensors that cannot be written, and says so of each.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return _assembled(found.commit, found.layout, optimizer, found.sections)


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
