"""One process of a chain."""

from __future__ import annotations

from flowcheck.ops.watch.parts.part import Part


class Stage(Part, frozen=True, kw_only=True):
    """One process."""

    name: str
    """supervisor, capture-0, parse-0, extract, update, persist, serve."""
    job: int
    pid: int | None
    """None: it does not live."""
    started: bool
    """It was, at least once."""
    restarts: int
    gone_s: float | None
    """For how long it was seen not to live; None: it does, or was never started."""
    done: int | None = None
    """Frames, or steps, so far (`unit`); None: it counts nothing."""
    rate: float | None = None
    """Of those a second, over the last seconds; None: not known yet."""
    unit: str = ""
    """frames, steps or empty."""
    bytes_s: float | None = None
    """Capture: bytes off the wire a second."""
