"""What the updater asks of whatever brings finished gradients.

A source numbers iterations from 1 for as long as its run lasts, and keeps what it brought until it
is told that the replica has it. The order that makes a kill harmless (update_stage.py) rests on
`release`: it is called last, and what it says outlives the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.finding import Finding
from flowcheck.step_numbers import Iteration
from flowcheck.wire.traffic.observed_messages import Range


class ArrivedGradient(Protocol):
    """One iteration, of which all that ever comes has come."""

    @property
    def iteration(self) -> Iteration: ...

    @property
    def data(self) -> NDArray[np.uint8]:
        """[gradient_bytes], flat in registration order; behind it the map of how many ranks used
        each parameter, where the training has one (job_state/unused_parameters.py). A view, valid
        until the iteration is released or the source closed."""
        ...

    @property
    def unbelieved(self) -> Sequence[Range]:
        """Byte ranges of which nothing may be taken, ascending; of most training () only."""
        ...

    def certain(self) -> bool:
        """Nothing speaks against it by now, so that its step may be taken. Asked again right before
        the replica commits: where it says no then, the step is never taken."""
        ...

    @property
    def doubted(self) -> bool:
        """`certain` said no."""
        ...


class Opening(NamedTuple):
    """Where an iteration arrives, and as the how manieth: of another one the bytes are others."""

    place: int
    number: int
    """Of this opening of the place."""
    undone: int
    """How often coverage was taken back, before any of it was looked at."""


class PartialCoverage(Protocol):
    """Which bytes of an iteration are there while the others still arrive (early_step.py)."""

    def opening(self, iteration: Iteration) -> Opening | None:
        """None: it does not arrive now, or all of it is there."""
        ...

    def contradicted(self, opening: Opening) -> bool:
        """Two copies of some bytes differ, so that nothing may be taken of them by now."""
        ...

    def gradient(self, opening: Opening) -> NDArray[np.uint8]:
        """[gradient_bytes] as ArrivedGradient.data has it: the same memory."""
        ...

    def missing(self, opening: Opening) -> Sequence[Range]:
        """Byte ranges that are not covered, ascending. What is covered may be read once `settled`
        is greater than it was behind this look."""
        ...

    @property
    def settled(self) -> int:
        """Grows behind bytes that are there to be read."""
        ...

    def stands(self, opening: Opening) -> bool:
        """All of it came by now, and every byte seen of it is still what it was."""
        ...


class GradientSource(Protocol):
    """Finished gradients, oldest first, each exactly once."""

    @property
    def gradient_bytes(self) -> int:
        """Of one iteration, with the map behind it."""
        ...

    @property
    def held_bytes(self) -> int:
        """What `held` gives of an iteration; 0: nothing."""
        ...

    @property
    def applied_iteration(self) -> Iteration:
        """The last one that was released; kept across a kill."""
        ...

    @property
    def next_iteration(self) -> Iteration:
        """The one to be taken next, whether or not it is there."""
        ...

    def arrived(self, iteration: Iteration) -> ArrivedGradient | None:
        """All of it, or all that ever comes where that is enough, whether or not it is certain.
        None: it is not there, not yet or not any more."""
        ...

    def held(self, iteration: Iteration) -> NDArray[np.uint8] | None:
        """[held_bytes] a copy of the buffers that were sent with an iteration; None: not there."""
        ...

    @property
    def partial(self) -> PartialCoverage | None:
        """None: iterations come whole, and no step begins early."""
        ...

    @property
    def ended(self) -> bool:
        """The next iteration never comes: no step is taken behind those that were."""
        ...

    def news(self) -> Finding | None:
        """For the operator, each once: what the source alone can tell, such as why it ended."""
        ...

    def release(self, iteration: Iteration) -> None:
        """The replica has this one and all before it, and their lines are written; kept across a
        kill from here on."""
        ...

    def rewind(self, iteration: Iteration) -> None:
        """The job went back: the next iteration is the one behind this, with other bytes. Kept
        across a kill from here on."""
        ...

    def close(self) -> None: ...
