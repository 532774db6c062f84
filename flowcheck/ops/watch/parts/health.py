"""One word on a chain or a job, and why."""

from __future__ import annotations

from enum import StrEnum

from flowcheck.ops.watch.parts.part import Part


class Word(StrEnum):
    EXACT = "exact"
    """The replica has taken every whole step that came, and all of it is as the trainers'."""
    BEHIND = "behind"
    """It waits: for a job, for a base, or it has more than a little to take."""
    TAINTED = "tainted"
    """What it holds is not all of its step, or an audit says that it is not the trainers'."""
    STALE = "stale"
    """It does not get on, or nobody knows: no chain, no stage, a step was lost, nothing arrives."""


class Health(Part, frozen=True, kw_only=True):
    word: Word
    reason: str
    """One sentence; never empty."""
