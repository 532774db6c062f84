"""Are gathered bytes the parameters that were gathered before, a step later?

Units of one size are told apart by their order alone, and a gradient has the size of its parameters
where both are of one type: a trainer that does once what it never did before would put one in the
other's place. Parameters change little in a step, so what they hold tells.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowcheck.replica.layout import numbers, size_of
from flowcheck.wire.job import Follows, Job

LOOKED_AT = 1 << 12
"""Values of each unit, evenly over it."""
ENOUGH_VALUES = 64
"""That are not zero, before a unit is judged."""
UNRELATED = 1.0
"""Of its length, that a unit changes by in a step at most. What is another thing: 1.4."""
OTHER = (
    "what was gathered in place of unit {} is nothing like it was a step before (it changed by "
    "{:.2f} of its length): the trainer gathers in another order than before, or something else"
)


class Steady:
    """Remembers a sample of every unit."""

    def __init__(self, job: Job) -> None:
        """Judges nothing where the type of the parameters is not told."""
        own = job.parameters if job.kind is Follows.PARAMETERS else ()
        self._units: list[tuple[slice, str]] = []
        at = 0
        for parameter in own:
            if parameter.dtype is None:
                self._units = []
                break
            self._units.append((slice(at, at + parameter.nbytes), parameter.dtype))
            at += parameter.nbytes
        self._before: list[NDArray[np.float64]] = []

    def problem(self, whole: NDArray[np.uint8]) -> str:
        """Why the bytes of a step must not be taken; empty: they may, and are what the next one is
        held against."""
        now = list(self._sampled(whole))
        for number, (was, new) in enumerate(zip(self._before, now, strict=bool(self._before))):
            length = float(np.linalg.norm(was))
            change = float(np.linalg.norm(new - was))
            judged = np.count_nonzero(was) >= ENOUGH_VALUES and np.isfinite(change)
            if judged and change > UNRELATED * length:
                return OTHER.format(number, change / length)
        self._before = now
        return ""

    def _sampled(self, whole: NDArray[np.uint8]) -> Iterator[NDArray[np.float64]]:
        for part, dtype in self._units:
            each = whole[part].reshape(-1, size_of(dtype))
            taken = each[:: max(1, len(each) // LOOKED_AT)]
            yield numbers(np.ascontiguousarray(taken).reshape(-1), dtype)
