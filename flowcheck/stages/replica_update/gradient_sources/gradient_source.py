"""The interface of a source of complete gradients, as the updater uses it.

A source numbers iterations from 1 for the length of its run. It keeps each iteration until the
updater says that the replica has it. The order that makes a kill harmless (update_stage.py) needs
`release` to be called last and to outlive the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.finding import Finding
from flowcheck.step_numbers import Iteration
from flowcheck.wire.traffic.observed_messages import Range


class ArrivedGradient(Protocol):
    """One iteration for which nothing more will arrive."""

    @property
    def iteration(self) -> Iteration: ...

    @property
    def data(self) -> NDArray[np.uint8]:
        """[gradient_bytes], flat in registration order; after it the map of how many ranks used
        each parameter, where the training has one (job_state/unused_parameters.py). A view, valid
        until the iteration is released or the source is closed."""
        ...

    @property
    def unbelieved(self) -> Sequence[Range]:
        """Byte ranges of `data` that never came, which are zero where gradients are followed, or of
        which copies differ; ascending. () of an iteration that is whole."""
        ...

    def certain(self) -> bool:
        """Whether nothing contradicts the bytes so far, so that the step may be applied. Asked
        again right before the replica commits: if it is False then, the step is never applied."""
        ...

    @property
    def doubted(self) -> bool:
        """Whether `certain` was False."""
        ...


class Opening(NamedTuple):
    """Where an iteration arrives, and which use of that place it is: another use has other
    bytes."""

    place: int
    number: int
    """How often the place had been opened."""
    undone: int
    """How often coverage had been taken back, before any of it was looked at."""


class LateDifferences(NamedTuple):
    """Copies that differ of an iteration which was released before it was known."""

    place: int
    iteration: Iteration
    conflict_bytes: int
    """How many bytes differ, by the source's count: more may be found later."""
    ranges: Sequence[Range]
    """Byte ranges of its data that differ, ascending."""


class PartialCoverage(Protocol):
    """Which bytes of an iteration are there while others still arrive (early_step.py)."""

    def opening(self, iteration: Iteration) -> Opening | None:
        """Where the iteration arrives; None: it is not arriving, or is complete."""
        ...

    def contradicted(self, opening: Opening) -> bool:
        """Whether two copies of some bytes differ, so that nothing of the iteration may be used."""
        ...

    def gradient(self, opening: Opening) -> NDArray[np.uint8]:
        """[gradient_bytes] in the order of ArrivedGradient.data, and the same memory."""
        ...

    def missing(self, opening: Opening) -> Sequence[Range]:
        """Byte ranges that are not covered, ascending. Covered bytes may be read once `settled` is
        greater than it was after this call."""
        ...

    @property
    def settled(self) -> int:
        """A counter that grows after covered bytes have become readable."""
        ...

    def is_whole(self, opening: Opening) -> bool:
        """Whether all of it has arrived, and every byte read of it is unchanged."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProgress:
    """How far a source is, for processes other than the updater, which only look."""

    gradient_bytes: int
    """Bytes of one iteration, with the map after it."""
    applied_iteration: Iteration
    """The last iteration that was released."""
    complete: int
    """How many later iterations are complete."""
    next_is_complete: bool
    """Whether the updater has a complete iteration to apply, as far as can be told from outside."""
    lost_iteration: Iteration | None
    """The first iteration that is known never to become complete; None: there is none."""
    next_covered_bytes: int | None
    """Bytes of the next iteration that have arrived; None: it is complete, or nothing of it is
    expected yet, or this kind of source does not tell."""
    covered_bytes: int
    """Bytes of all iterations that the source holds. It changes as long as something arrives."""


class GradientSource(Protocol):
    """Complete gradients, oldest first, each exactly once."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one iteration, with the map after it."""
        ...

    @property
    def module_buffer_bytes(self) -> int:
        """Bytes that `module_buffers` returns for an iteration; 0: nothing."""
        ...

    @property
    def applied_iteration(self) -> Iteration:
        """The last iteration that was released; outlives a kill."""
        ...

    @property
    def next_iteration(self) -> Iteration:
        """The next iteration to apply, whether or not it is there."""
        ...

    def arrived(self, iteration: Iteration) -> ArrivedGradient | None:
        """The iteration once it is complete, or once nothing more will arrive and what came is
        enough; certain or not. None: it is not there, not yet or no longer."""
        ...

    def module_buffers(self, iteration: Iteration) -> NDArray[np.uint8] | None:
        """[module_buffer_bytes] a copy of the buffers that were sent with an iteration; None: they
        are not there."""
        ...

    @property
    def partial(self) -> PartialCoverage | None:
        """Coverage of iterations that are still arriving; None: iterations only come complete, and
        no step begins early."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the next iteration never comes, so that no further step is applied."""
        ...

    def new_finding(self) -> Finding | None:
        """Findings for the operator that the source alone can tell, such as why it ended; each is
        returned once."""
        ...

    def differing_late(self) -> Sequence[LateDifferences]:
        """What differs of released iterations and was not settled; where it is known which bytes
        do, and that each matters to its own element alone."""
        ...

    def settle_late(self, late: LateDifferences) -> None:
        """What these bytes cost is on file. Outlives a kill once this returns."""
        ...

    def release(self, iteration: Iteration) -> None:
        """The replica has this iteration and all before it, and their lines are written. Outlives a
        kill once this returns."""
        ...

    def rewind(self, iteration: Iteration) -> None:
        """The job went back: the next iteration is the one after this, with other bytes. Outlives a
        kill once this returns."""
        ...

    def close(self) -> None: ...
