"""What became of a step."""

from __future__ import annotations

from flowcheck.ops.watch.parts.part import Part


class Step(Part, frozen=True, kw_only=True):
    """What became of one step; the marks of a timeline."""

    step: int
    arrived_ns: int | None = None
    """The last byte of it was placed."""
    applied_ns: int | None = None
    """The replica took it."""
    durable_ns: int | None = None
    """A checkpoint of it is whole at the target."""
    seconds: float | None = None
    """That taking it took."""
    lost: str = ""
    """Why it cannot be rebuilt; empty: it was not lost."""
    missing: int = 0
    """Packets of it that sequence numbers show and no mirror brought."""
    healed: int = 0
    """Of those, that came after all; with `lost`, 1: the replica goes on behind it."""
    tainted: bool = False
    """Taken without all of its bytes."""
    audited: bool | None = None
    """Whether an audit of it passed; None: there was none."""
    anchored: bool = False
    """The trainer's own file took its place."""
    logged: bool = False
    """It waits for a base, and is counted from 1 since the job was joined."""
