"""What a mirror port brought, and where it is."""

from __future__ import annotations

from flowcheck.ops.watch.parts.part import Part


class Ring(Part, frozen=True, kw_only=True):
    """The shared-memory ring of one queue of a mirror port."""

    number: int
    source: str
    """What frames come from, as the job file states it: eth1, 0000:3b:00.0, a file."""
    slots: int
    filled_slots: int
    """Captured and not yet given back by the slowest reader."""
    fill: float
    """Their part of all, 0 to 1."""
    huge_pages: bool
    head: int
    parsed: int
    tail: int
    captured_bytes: int
    """Off the wire."""
    frame_age_s: float | None
    """Since the last frame, to half a second; None: none came."""
    dark_s: float | None
    """For how long its interface has had no link; None: it has, or is no interface of the kernel's,
    of which nothing is known."""
    lost: dict[str, int]
    """Frames that reached this machine and no slot, by counter (LOSSES, plane/counters.py)."""
    verdicts: dict[str, int]
    """Frames by what they turned out to be; those with none left out."""
    parse: dict[str, int]
    """The parser's other counters."""
    extract: dict[str, int]
    """The first job's extractor's counters."""
    missing_packets: int
    """That flows' sequence numbers show and that port did not bring, now."""
