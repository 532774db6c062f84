"""The supervisor's heartbeat file: that it is alive, and what it has counted.

Whoever watches a chain goes by it: a process that stands still is alive, but writes no heartbeat.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS
from flowcheck.findings.catalog.earlier_files import finding_of
from flowcheck.findings.finding import Finding


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Totals are of all since the chain began, however much of events.jsonl is left."""

    pid: int
    started_ns: int
    """Since 1970."""
    beat_ns: int
    """CLOCK_MONOTONIC, which is one for all processes of this machine."""
    ending: bool = False
    """It was asked to end: no further step is applied."""
    in_order: bool = False
    """It ends because somebody wanted it, or its sources ended: nothing failed."""
    events: dict[str, int] = {}
    """By kind."""
    restarts: dict[str, int] = {}
    """By stage."""
    steps_lost: int = 0
    packets_came_late: int = 0
    """Missing at a look, and there at a later one."""
    frame_ns: tuple[int, ...] = ()
    """[ring] CLOCK_MONOTONIC of the last frame captured, to half a second; 0: none came."""
    dark_ns: tuple[int, ...] = ()
    """[source] CLOCK_MONOTONIC since when its interface has no link; 0: it has one, or the source
    is no interface."""
    came_ns: int | None = None
    """CLOCK_MONOTONIC of the last packet of the job's; None: it is not asked (no job is learned,
    or the sources have ended)."""
    silence_limit_s: float = 0.0
    """Seconds. A longer time without packets of the job is no pause between its steps
    (silence_detector.py)."""
    step_s: float = 0.0
    """Median of its steps; 0: not known."""
    newest_step: int | None = None
    """That a packet came of, of those that are not whole; told while packets are missing."""
    unplaced_s: float = 0.0
    """For how long packets came that no plan has, since the last one that a plan does."""
    unwritten_lines: int = 0
    """Of records, steps' and events', that found no room."""
    full: tuple[Finding, ...] = ()
    """One for each file of records that has no room just now."""
    taken: int = 0
    """The last step the replica took; 0: none."""
    digest: str = ""
    """Of the replica then."""

    @property
    def age_s(self) -> float:
        """Seconds since it; infinite where this machine was started anew since."""
        age_ns = time.monotonic_ns() - self.beat_ns
        return age_ns / 1e9 if age_ns >= 0 else float("inf")


def write_beat(path: Path, beat: Heartbeat) -> None:
    """A heartbeat that cannot be written does not end a chain. On a full disk it is overwritten in
    place, which takes no room: for an instant a reader may find it torn, and ignores it."""
    encoded = msgspec.json.encode(beat)
    try:
        write_atomically(path, encoded, durable=False)
    except OSError:
        with suppress(OSError), path.open("r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            os.pwrite(file.fileno(), encoded.ljust(size), 0)


def read_beat(path: Path) -> Heartbeat | None:
    """None where there is none. In one of an earlier version `full` holds sentences."""
    with suppress(OSError, *DECODE_ERRORS):
        text = path.read_bytes()
        try:
            return msgspec.json.decode(text, type=Heartbeat)
        except msgspec.ValidationError:
            told = msgspec.json.decode(text, type=dict[str, Any])
            full = msgspec.convert(told.pop("full", ()), tuple[Finding | str, ...])
            beat = msgspec.convert(told, Heartbeat)
            return msgspec.structs.replace(beat, full=tuple(map(finding_of, full)))
    return None
