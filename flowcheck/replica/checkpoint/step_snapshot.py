"""A consistent snapshot of one step of a replica that another process goes on stepping.

The updater writes only to the oldest copy that nobody reads (concurrent_reader.py), and marks it as
incomplete first. The digest proves that nothing changed while a copy was read.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.replica_state_errors import (
    COPY_NOT_HELD,
    DIGEST_DIFFERS,
    OTHER_OPTIMIZER,
    OVERWRITTEN,
)
from flowcheck.replica.checkpoint.frozen_and_buffers import (
    NO_FROZEN_OR_BUFFERS,
    FrozenAndBuffers,
    read_frozen_and_buffers,
)
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.optimizer.state_sections import (
    has_state_mask,
    named_tensors,
    stored_states,
    tensors_of_section,
)
from flowcheck.replica.optimizer_step.weights_only_step import parameters_of_other_steps
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_digest import state_digest, tensor_digests
from flowcheck.replica.state_file.concurrent_reader import ATTEMPTS, pin_step
from flowcheck.replica.state_file.file_header import Commit, Description
from flowcheck.replica.taint import TaintedRanges, read_taint
from flowcheck.step_numbers import Step


@dataclass(frozen=True, slots=True)
class OptionalState:
    """What a step has of rules that not every trainer has."""

    masters: dict[str, torch.Tensor] | None = None
    """What the optimizer steps in place of the parameters, by their names."""
    averages: dict[str, torch.Tensor] | None = None
    average_updates: int = 0
    """How often those were updated."""
    scaler: dict[str, float] = field(default_factory=dict)
    """By the words of optimizers.SCALER_NUMBERS; {} without a loss scale."""

    @property
    def skipped(self) -> int:
        """Steps of the stream that were none of the optimizer's."""
        return int(self.scaler.get("skipped", 0))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One step of a replica in memory; tensors have the trainer's strides.

    states: per parameter in registration order, {torch's state name: tensor, or number where the
    optimizer keeps one of Python's}; {} where torch has none (before its first step, or SGD without
    momentum).
    """

    step: Step
    digest: str
    layout: Layout
    optimizer: OptimizerConfig
    parameters: dict[str, torch.Tensor]
    states: tuple[dict[str, Any], ...]
    older: dict[str, int] = field(default_factory=dict)
    """Parameters that are of another step, and which."""
    tainted: TaintedRanges = field(default_factory=dict)
    """Elements that rest on bytes which never came."""
    optional_state: OptionalState = field(default_factory=OptionalState)
    """What not every job has."""
    frozen_and_buffers: FrozenAndBuffers = NO_FROZEN_OR_BUFFERS
    """The rest of the module, where it is stated."""

    @property
    def parameters_only(self) -> bool:
        """Nothing is known of an optimizer's state."""
        return not self.optimizer.computes_steps


def copy_snapshot(path: Path, optimizer: OptimizerConfig, step: Step | None = None) -> Snapshot:
    """A step of the state file at `path`, whoever is writing it; the newest by default.

    Raises RingError where there is no state, StateError where it was made with other optimizer
    settings, does not hold the step, or never held still for as long as a copy takes.
    """
    for _ in range(ATTEMPTS):
        with pin_step(path, step) as held:
            commit, description = held.commit, held.description
            sections = {name: array.copy() for name, array in held.sections.items()}
            tainted = read_taint(path, commit, description.layout)
            # Where another state was given meanwhile, the taint may be of that one.
            if not held.is_unchanged:
                continue
        _check_made_with(path, commit, optimizer)
        if not _has_its_digest(commit, description, sections):
            # The updater takes a step's commit away before it writes there: nobody did.
            raise StateError(DIGEST_DIFFERS(path=path, step=commit.step))
        auxiliary = read_frozen_and_buffers(path, commit.step)
        return _assembled(commit, description, optimizer, sections, auxiliary, tainted)
    raise StateError(COPY_NOT_HELD(path=path, reads=ATTEMPTS))


@contextmanager
def hold_snapshot(
    path: Path, optimizer: OptimizerConfig, step: Step | None = None
) -> Iterator[Snapshot]:
    """As `copy_snapshot`, without a copy where the file has a version to spare: its tensors lie in
    shared memory then, not to be written, and the updater leaves them alone until the end of the
    `with`. Without one it is the copy that `copy_snapshot` makes.

    Raises what `copy_snapshot` does, and StateError at the end if the step was overwritten after
    all, because other readers hold all other copies: what was read is worthless then.
    """
    with pin_step(path, step) as found:
        if found.has_spare_copy:
            _check_made_with(path, found.commit, optimizer)
            if not _has_its_digest(found.commit, found.description, found.sections):
                raise StateError(DIGEST_DIFFERS(path=path, step=found.commit.step))
            auxiliary = read_frozen_and_buffers(path, found.commit.step)
            tainted = read_taint(path, found.commit, found.description.layout)
            held = found.commit, found.description, optimizer, found.sections
            yield snapshot_in_place(*held, auxiliary, tainted)
            if not found.is_unchanged:
                raise StateError(OVERWRITTEN(path=path, step=found.commit.step))
            return
    yield copy_snapshot(path, optimizer, step)


def _check_made_with(path: Path, commit: Commit, optimizer: OptimizerConfig) -> None:
    if commit.fingerprint != state_section_names.fingerprint(optimizer):
        raise StateError(OTHER_OPTIMIZER(path))


def _has_its_digest(
    commit: Commit, description: Description, sections: dict[str, np.ndarray]
) -> bool:
    named = named_tensors(description, sections)
    return state_digest(named, tensor_digests(a for _, a in named)) == commit.digest


def snapshot_in_place(
    commit: Commit,
    description: Description,
    optimizer: OptimizerConfig,
    sections: dict[str, np.ndarray],
    frozen_and_buffers: FrozenAndBuffers,
    tainted: TaintedRanges,
) -> Snapshot:
    """A step over the memory it lies in, not to be written."""
    with warnings.catch_warnings():
        # torch has no tensors that cannot be written, and says so of each.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return _assembled(commit, description, optimizer, sections, frozen_and_buffers, tainted)


def _assembled(
    commit: Commit,
    description: Description,
    optimizer: OptimizerConfig,
    sections: dict[str, np.ndarray],
    frozen_and_buffers: FrozenAndBuffers,
    tainted: TaintedRanges,
) -> Snapshot:
    layout = description.layout
    held = has_state_mask(description, sections, stepped=commit.has_optimizer_state)
    states = tuple(
        {name: own.value for name, own in each.items()} if has else {}
        for each, has in zip(stored_states(description, sections), held, strict=True)
    )

    def by_name(section: str) -> dict[str, torch.Tensor] | None:
        tensors = tensors_of_section(description, sections, section)
        names = (p.name for p in layout.parameters)
        return None if tensors is None else dict(zip(names, tensors, strict=True))

    parameters = by_name(state_section_names.PARAMETERS)
    assert parameters is not None
    numbers = zip(
        state_section_names.SCALER_NUMBERS,
        sections.get(state_section_names.SCALER, ()),
        strict=False,
    )
    counted = sections.get(state_section_names.AVERAGED)
    more = OptionalState(
        masters=by_name(state_section_names.MASTER),
        averages=by_name(state_section_names.AVERAGE),
        average_updates=0 if counted is None else int(counted[0]),
        scaler={name: float(number) for name, number in numbers},
    )
    left = parameters_of_other_steps(optimizer, layout, sections, commit.step)
    return Snapshot(
        commit.step,
        commit.digest.hex(),
        layout,
        optimizer,
        parameters,
        states,
        left,
        tainted,
        more,
        frozen_and_buffers,
    )
