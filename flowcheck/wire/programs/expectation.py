"""What a program and the aligner say to each other.

A program is a generator: it yields the collectives of which one must come next, and is sent the one
that came. It knows the trainer and nothing of rings, protocols or messages.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind

Content = NDArray[np.uint8]
"""The result of a collective; of a gather one rank's block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """A collective that may come next."""

    kind: CollectiveKind
    meaning: str
    work_bytes: int = 0
    """Of the tensor, or of one rank's block of a gather; 0: nothing but the wire tells."""
    most_bytes: int = 0
    """Of one that only the wire sizes; 0: nothing bounds it."""
    type_bytes: int = 0
    """Of an element, where that is known; 0: it is not."""
    holds: Callable[[Content, int], bool] | None = None
    """(content, ranks) -> whether this is what it ought to hold, which is then looked at; None: it
    may hold anything."""
    ends: Callable[[Content, int], Sequence[int]] | None = None
    """(content, how many bytes at its end may be none of it) -> sizes that the content allows, of
    a collective that only the wire sizes; None: those of the wire."""


EXTRA = Expect(kind=CollectiveKind.ALL_REDUCE, meaning="")
"""A number or some that a script reduces, of its own will: nothing but the wire tells how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """The collective that came."""

    expect: Expect
    """As which of those that were expected."""
    work_bytes: int
    content: Content | None
    """None where it may hold anything."""
    slack_bytes: int
    """So many bytes less it may have had, where nothing but the wire told its size."""


Program = Generator[tuple[Expect, ...], Came, None]
