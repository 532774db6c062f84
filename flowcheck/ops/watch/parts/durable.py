"""What a chain's checkpoints are."""

from __future__ import annotations

from flowcheck.ops.watch.parts.part import Part


class Durable(Part, frozen=True, kw_only=True):
    """Checkpoints that are written while the chain runs."""

    target: str
    step: int | None
    """Of the newest that is whole there."""
    name: str
    time_ns: int | None
    age_s: float | None
    count: int
    """Saved since the chain began."""
    phase: str
    """writing, sending, verifying; empty: nothing is under way."""
    phase_step: int | None
    done_share: float | None
    """Of what is under way, 0 to 1; None: not known."""
    error: str
    """Of the last attempt; empty: it did not fail."""
    attempts: int
    """That failed since one did not."""
