"""Progress of a chain for the operator: bars and stall limit of a replay, messages of a live
chain on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from flowcheck.config import JobConfig, LogConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.how_chains_end import (
    BYTES_NEVER_CAME,
    CANNOT_BE_REBUILT,
    CAUSE_UNKNOWN,
    MORE_BYTES_NEVER_CAME,
)
from flowcheck.findings.catalog.starting_a_chain import CAPTURES, FOLLOWS, STALLED
from flowcheck.findings.finding import Finding
from flowcheck.messages import StepLost
from flowcheck.ops.json_option import asks_for_json
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import Position, stage_at, stage_named, stage_names
from flowcheck.stages.supervisor.chain_progress import ChainProgress
from flowcheck.untrusted_text import printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

STALL_LIMIT_S = 120.0
"""Seconds without progress after which a replay counts as stuck and says where. Pauses between
frames of a capture that is replayed at its own pace do not count. A choice: a longer limit reports
a stuck chain later, a shorter one may take a busy machine for a stuck chain."""

ERROR = "error"
RANGES_SHOWN = 8
"""Missing ranges that a message lists; events.jsonl has all. A choice of layout."""


class ReplayProgress:
    """Shows the chain's positions as progress bars. The supervisor calls it in every turn."""

    def __init__(self, where: RunDir, config: JobConfig, console: Console, frames: int) -> None:
        """frames: how many all sources hold together."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._rings = [FrameRing.open(where.ring(number)) for number in range(len(config.rings))]
        self._frames = frames
        self._paced = any(source.speed is not None for source in config.source)
        named = stage_names(config)
        self._stages = {name for name in named if not stage_named(name).spec.optional}
        self._bars = Progress(
            TextColumn("{task.description:>9}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._bars.add_task(name, total=frames or 1, count="")
            for name in ("captured", "parsed", "extracted", "applied")
        }
        self._last: tuple[int, ...] = ()
        self._moved_s = time.monotonic()

    def __enter__(self) -> ReplayProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
        for ring in self._rings:
            ring.close()

    def __call__(self, progress: ChainProgress) -> None:
        """Raises StateError, naming the stage, when nothing moved for STALL_LIMIT_S."""
        heads = sum(ring.head for ring in self._rings)
        parsed = sum(ring.parsed for ring in self._rings)
        tails = sum(ring.tail for ring in self._rings)
        now = (heads, parsed, tails, progress.steps, progress.restarts)
        if (
            not self._stages <= progress.up
        ):  # the supervisor waits for these with a limit of its own
            self._moved_s = time.monotonic()
        if now == self._last:
            self._patience(now)
            return
        self._last, self._moved_s = now, time.monotonic()
        for name, value in (("captured", heads), ("parsed", parsed), ("extracted", tails)):
            self._bars.update(self._tasks[name], completed=value, count=f"{value:,} frames")
        self._bars.update(
            self._tasks["applied"],
            total=progress.complete_steps or None,
            completed=progress.steps,
            count=f"{progress.steps:,} steps",
        )

    def _patience(self, now: tuple[int, ...]) -> None:
        heads, parsed, tails, steps, _ = now
        waiting_for_time = self._paced and heads < self._frames and heads == parsed == tails
        if waiting_for_time or time.monotonic() - self._moved_s < STALL_LIMIT_S:
            return
        stuck = Position.STEP
        for position, there, wanted in (
            (Position.TAIL, tails, parsed),
            (Position.PARSED, parsed, heads),
            (Position.HEAD, heads, self._frames),
        ):
            if there < wanted:
                stuck = position
        raise StateError(
            STALLED(
                seconds=round(STALL_LIMIT_S),
                stage=stage_at(stuck).name,
                captured=heads,
                frames=self._frames,
                parsed=parsed,
                extracted=tails,
                steps=steps,
            )
        )


class LiveMessages:
    """Prints what the operator of a live chain must know on stderr, as it happens."""

    def __init__(self, config: JobConfig) -> None:
        named = stage_names(config)
        self._captures = {name for name in named if stage_named(name).spec.brings_frames}
        self._notes = 0
        self._listening = self._stepping = self._lost = False

    def __call__(self, progress: ChainProgress) -> None:
        for note in progress.notes.since(self._notes):
            print_message(note)
        self._notes = progress.notes.count
        # A chain without captures waits for no training.
        if self._captures and not self._listening and self._captures <= progress.up:
            self._listening = True
            print_message(CAPTURES())
        if progress.steps and not self._stepping:
            self._stepping = True
            print_message(FOLLOWS(progress.steps))
        if progress.lost is not None and not self._lost:
            self._lost = True
            print_message(lost_step_finding(progress.lost), ERROR)


def lost_step_finding(lost: StepLost) -> Finding:
    """The finding of a lost step: what is missing, and what that means for the replica."""
    why = lost.why or CAUSE_UNKNOWN()
    ranges = [f"[{start}, {stop})" for start, stop in lost.missing[:RANGES_SHOWN]]
    more = len(lost.missing) - len(ranges)
    if more:
        why = MORE_BYTES_NEVER_CAME(ranges=ranges, more=more, why=why)
    elif ranges:
        why = BYTES_NEVER_CAME(ranges=ranges, why=why)
    return CANNOT_BE_REBUILT(step=lost.step, why=why, replica_step=lost.step - 1)


def print_message(
    message: str | Finding, level: str = "info", more: Mapping[str, Any] | None = None
) -> None:
    """To the operator, on stderr; what to do about it follows in a line of its own, and before it
    the cause of an error. For a command with --json, or where the job file asks for it, the line is
    a JSON object. A terminal that went away is no reason to end a chain. more: further fields for a
    program."""
    line = f"flowcheck: {printable_lines(str(message))}"
    if isinstance(message, Finding):
        below = (message.cause if level == ERROR else "", message.remedy)
        line += "".join(f"\n  {printable(one)}" for one in below if one)
    if _MESSAGE_FORMAT.format == "json" or asks_for_json():
        fields: dict[str, Any] = {"time_ns": time.time_ns(), "level": level}
        if isinstance(message, Finding):
            fields["finding"] = message
        line = msgspec.json.encode({**fields, "message": str(message), **(more or {})}).decode()
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def set_message_format(config: LogConfig) -> None:
    """Sets the format in which this process prints messages from now on."""
    _MESSAGE_FORMAT.format = config.format


class _MessageFormat:
    format = "text"


_MESSAGE_FORMAT = _MessageFormat()
