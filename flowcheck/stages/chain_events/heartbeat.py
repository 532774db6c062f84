"""The supervisor's heartbeat file: proves that it makes progress, and has what it has counted.

Whoever watches a chain relies on it: a process that hangs is alive, but writes no heartbeat.
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
    """Totals count from the start of the chain, however much of events.jsonl is left."""

    pid: int
    started_ns: int
    """Start of the chain, nanoseconds since 1970."""
    beat_ns: int
    """Time of this heartbeat, nanoseconds of CLOCK_MONOTONIC, which all processes of a machine
    share."""
    ending: bool = False
    """The chain was asked to end: no further step is applied."""
    in_order: bool = False
    """It ends because somebody asked for it, or because its sources ended: nothing failed."""
    events: dict[str, int] = {}
    """{kind: number of events}"""
    restarts: dict[str, int] = {}
    """{stage: number of restarts}"""
    steps_lost: int = 0
    packets_came_late: int = 0
    """Packets that were missing at one look and there at a later one."""
    frame_ns: tuple[int, ...] = ()
    """[ring] CLOCK_MONOTONIC of the last frame captured, to half a second; 0: none came."""
    link_down_ns: tuple[int, ...] = msgspec.field(default=(), name="dark_ns")
    """[source] CLOCK_MONOTONIC since when its interface has no link; 0: it has one, or the source
    is no interface."""
    came_ns: int | None = None
    """CLOCK_MONOTONIC of the last packet of the job; None: not measured (no job is learned, or the
    sources have ended)."""
    silence_limit_s: float = 0.0
    """Seconds. A longer time without packets of the job is no pause between its steps
    (silence_detector.py)."""
    step_s: float = 0.0
    """Median time of the job's steps, in seconds; 0: unknown."""
    newest_step: int | None = None
    """The newest incomplete step that a packet arrived for; only set while packets are missing."""
    unplaced_s: float = 0.0
    """Seconds for which only packets without a plan arrived, since the last one with a plan."""
    unwritten_lines: int = 0
    """Lines of step and event records that found no room."""
    full: tuple[Finding, ...] = ()
    """A finding for each record file that has no room at present."""
    applied: int = msgspec.field(default=0, name="taken")
    """The last step the replica applied; 0: none."""
    digest: str = ""
    """Digest of the replica at that step."""

    @property
    def age_s(self) -> float:
        """Seconds since this heartbeat; infinite where the machine was rebooted since."""
        age_ns = time.monotonic_ns() - self.beat_ns
        return age_ns / 1e9 if age_ns >= 0 else float("inf")


def write_beat(path: Path, beat: Heartbeat) -> None:
    """Writes the file; a failure does not end the chain. On a full disk it overwrites the file in
    place, which needs no room: for an instant a reader may find it incomplete, and ignores it."""
    encoded = msgspec.json.encode(beat)
    try:
        write_atomically(path, encoded, durable=False)
    except OSError:
        with suppress(OSError), path.open("r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            os.pwrite(file.fileno(), encoded.ljust(size), 0)


def read_beat(path: Path) -> Heartbeat | None:
    """The heartbeat; None where there is none. An earlier version wrote sentences in `full`."""
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
