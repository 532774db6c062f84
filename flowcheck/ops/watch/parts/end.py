"""Why a chain ended, who ended it, and what it had come to."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from flowcheck.ops.watch.parts.part import Part
from flowcheck.ops.watch.parts.ring import Ring


class How(StrEnum):
    ASKED = "asked"
    """By who may: `flowcheck down`, Ctrl-C, a signal."""
    DRAINED = "drained"
    """Its sources ended, and all of them is taken: a replay."""
    FAILED = "failed"
    """It gave up."""
    KILLED = "killed"


class Kept(Part, frozen=True, kw_only=True):
    """Of one job's replica, at the end."""

    step: int
    """0: none was taken."""
    why: str = ""
    """What kept it from following to the end; empty: it did."""
    in_flight: int | None = None
    """A step that was not whole then; no loss."""
    checkpoint: str | None = None
    """Where it was written; None: it was not."""


class End(Part, frozen=True, kw_only=True):
    """Of a chain."""

    how: How
    by: str
    """A sentence: who asked, why it gave up, who found it killed."""
    time_ns: int
    """Since 1970; of a chain that was killed its last sign of life."""
    jobs: tuple[Kept, ...] = ()
    restarts: dict[str, int] = msgspec.field(default_factory=dict)
    """Times each stage was started again; of further jobs "NAME (job 2)"."""
    rings: tuple[Ring, ...] = ()
    """As they were then: what was captured, and what was lost."""

    @property
    def in_order(self) -> bool:
        """Somebody wanted it to end, or it had nothing left."""
        return self.how in (How.ASKED, How.DRAINED)
