"""events.jsonl: the kinds of events, one line each, and the writer that survives a full disk.

A line holds the fields of `Event`, and of a message those of the message beside them.

Of what lacks there an event tells, in front of the first line that is written again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.errors import DECODE_ERRORS
from flowcheck.messages import (
    Drained,
    Fault,
    Hello,
    JobLearned,
    Message,
    Note,
    SaveFailed,
    SourceEnded,
    StepApplied,
    StepArrived,
    StepDoubtful,
    StepLost,
    StepSaved,
    StepShort,
)
from flowcheck.messages import Unwritten as Told
from flowcheck.stages.run_directory.disk_full import DiskFullCounter, writable_again_note
from flowcheck.stages.run_directory.log_files import EVENTS_BYTES, append_line
from flowcheck.step_numbers import Step


class EventKind(StrEnum):
    START = "start"
    """The chain began."""
    STOP = "stop"
    """Its stages have ended."""
    UP = "up"
    """A stage is up."""
    RESTART = "restart"
    """A stage died, and is started again."""
    FAULT = "fault"
    """A stage cannot go on."""
    LEARNED = "learned"
    """A job is followed."""
    HANDOVER = "handover"
    """A later life of the job is followed."""
    ARRIVED = "arrived"
    """The last byte of a step was placed."""
    APPLIED = "applied"
    """The replica took a step."""
    LOSS = "loss"
    """`count` frames, packets or bytes never came (`what`), or a step cannot be rebuilt."""
    HEAL = "heal"
    """`count` packets came after all, or the replica goes on behind a step that was lost."""
    SILENT = "silent"
    """Nothing of the job arrived for `seconds`, which its steps do not explain."""
    ARRIVES = "arrives"
    """Something does again, after `seconds`."""
    LINK_DOWN = "link_down"
    """The interface that frames come by has no link."""
    LINK_UP = "link_up"
    """It has again, after `seconds`."""
    SAVE = "save"
    """A step is durable."""
    SAVE_FAILED = "save_failed"
    AUDIT = "audit"
    ANCHOR = "anchor"
    """The replica goes on from the trainer's own state of a step, or was to."""
    SOURCE_ENDED = "source_ended"
    DRAINED = "drained"
    NOTE = "note"
    """A sentence for the operator."""
    OTHER = "other"


LINES = "lines"
"""What a note counts that records lack, as their file system was full."""
FRAMES, PACKETS, BYTES, STEP = "frames", "packets", "bytes", "step"
DOUBTFUL = "doubtful bytes"
"""What an event of loss or heal counts: frames that reached this machine and no slot; packets that
a flow's sequence numbers show and no mirror brought; bytes of a step that is taken without them; a
whole step; bytes of a step within which two copies differ, of which one came after it was taken."""
COPY_DIFFERED_LATE = "a copy that differs came after the step was taken"


ONLY_DUPLICATES = "the step is taken, and no byte of it lacks: they carried none that was not there"
"""Why packets that no mirror brought, or that came doubtful, are told as healed."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of events.jsonl."""

    time_ns: int = 0
    """Since 1970; 0: a line of before this was written."""
    kind: EventKind = EventKind.OTHER
    job: int = 1
    """Number of the one that it is of; of the ports as a whole 1."""
    stage: str = ""
    step: Step | None = None
    count: int = 0
    what: str = ""
    why: str = ""
    seconds: float = 0.0
    bytes: int = 0
    passed: bool | None = None
    """Of an audit, or of a file of the trainer's: it was taken."""


_OF_MESSAGE: dict[type[Message], Callable[[Any], dict[str, Any]]] = {
    Hello: lambda m: {"kind": EventKind.UP, "stage": m.stage},
    JobLearned: lambda m: {"kind": EventKind.LEARNED, "stage": "extract", "why": m.path},
    StepArrived: lambda m: {"kind": EventKind.ARRIVED, "step": m.step, "time_ns": m.time_ns},
    StepApplied: lambda m: {"kind": EventKind.APPLIED, "step": m.step, "seconds": m.seconds},
    StepLost: lambda m: {
        "kind": EventKind.LOSS,
        "step": m.step,
        "what": STEP,
        "count": 1,
        "bytes": sum(stop - begin for begin, stop in m.missing),
        "why": m.why,
    },
    StepShort: lambda m: {
        "kind": EventKind.LOSS,
        "step": m.step,
        "what": BYTES,
        "count": m.missing_bytes,
        "why": m.why,
    },
    StepDoubtful: lambda m: {
        "kind": EventKind.LOSS,
        "step": m.step,
        "what": DOUBTFUL,
        "count": m.conflict_bytes,
        "why": COPY_DIFFERED_LATE,
    },
    StepSaved: lambda m: {
        "kind": EventKind.SAVE,
        "step": m.step,
        "bytes": m.bytes,
        "seconds": m.seconds,
        "time_ns": m.time_ns,
        "why": m.name,
    },
    SaveFailed: lambda m: {
        "kind": EventKind.SAVE_FAILED,
        "step": m.step,
        "why": m.why,
        "count": m.attempts,
    },
    SourceEnded: lambda m: {"kind": EventKind.SOURCE_ENDED, "count": m.frames, "what": FRAMES},
    Drained: lambda m: {"kind": EventKind.DRAINED, "stage": m.stage, "why": m.why},
    Fault: lambda m: {"kind": EventKind.FAULT, "stage": m.stage, "why": m.sentence},
    Note: lambda m: {"kind": EventKind.NOTE, "stage": m.stage, "why": m.sentence},
}


def event_of(message: Message, *, job: int, now_ns: int) -> Event:
    """What a message says, for the history."""
    told = _OF_MESSAGE.get(type(message), lambda _: {})(message)
    return Event(**({"time_ns": now_ns, "job": job} | told))


def line_of(event: Event, more: dict[str, Any]) -> bytes:
    """more: other fields for the line, which events of other programs' were read by."""
    seconds = {"time": round(event.time_ns / 1e9, 3)}
    return msgspec.json.encode(seconds | more | msgspec.to_builtins(event))


def read_event(line: bytes) -> Event | None:
    """What a line says; None of one that is torn, or of a later version's making."""
    try:
        event = msgspec.json.decode(line, type=Event)
        return event if event.kind is not EventKind.OTHER else _old(line, event)
    except (*DECODE_ERRORS, ValueError, TypeError, OverflowError):
        return None


_OLD = {
    "Hello": EventKind.UP,
    "StepApplied": EventKind.APPLIED,
    "StepLost": EventKind.LOSS,
    "Note": EventKind.NOTE,
    "Fault": EventKind.FAULT,
}


def _old(line: bytes, event: Event) -> Event | None:
    """Of a line that says what it is by its message's name, and when by seconds alone."""
    told = msgspec.json.decode(line)
    kind = EventKind.RESTART if told.get("event") == "restart" else _OLD.get(told.get("type"))
    if kind is None:
        return None
    why, time_ns = told.get("sentence", event.why), int(told.get("time", 0) * 1e9)
    return msgspec.structs.replace(event, kind=kind, time_ns=time_ns, why=why)


class EventLogWriter:
    """Of one run: events here, and what its updater says of steps."""

    def __init__(self, events: Path, say: Callable[[str], None]) -> None:
        self._events, self._say = events, say
        self._own = DiskFullCounter(events)
        self._lack: Counter[str] = Counter()
        """Lines of other files, since there was room for them last."""
        self._full: dict[str, str] = {}
        self._others = 0

    @property
    def lines(self) -> int:
        """Of all files, that found no room since the chain began."""
        return self._own.count + self._others

    @property
    def full(self) -> tuple[str, ...]:
        """A sentence for each file that has no room just now."""
        return tuple(sentence for sentence in (self._own.full, *self._full.values()) if sentence)

    def append(self, line: bytes) -> bool:
        """Writes a line where there is room; whether the end of a lack was told before it."""
        return self._put([line])

    def look(self) -> bool:
        """Tells the end of a lack without a line behind it; whether it did."""
        return bool(self._own.lacks) and self._put([])

    def _put(self, lines: list[bytes]) -> bool:
        lacks, was_full = self._own.lacks, bool(self._own.full)
        if lacks:
            why = writable_again_note(str(self._events), lacks)
            over = Event(
                kind=EventKind.NOTE, time_ns=time.time_ns(), count=lacks, what=LINES, why=why
            )
            lines = [line_of(over, {}), *lines]
        told = len(lines) - bool(lacks)

        def write() -> None:
            append_line(self._events, b"\n".join(lines), EVENTS_BYTES)

        if not self._own.attempt(write, told):
            if not was_full:
                self._say(self._own.full)
            return False
        if lacks:
            self._own.lacks = 0
            self._say(writable_again_note(str(self._events), lacks))
        return bool(lacks)

    def elsewhere(self, told: Told) -> Event | None:
        """What a stage says of a file of its own; the event of there being room again."""
        self._others += told.lines
        self._lack[told.file] += told.lines
        if told.full:
            if told.file not in self._full:
                self._say(told.full)
            self._full[told.file] = told.full
            return None
        self._full.pop(told.file, None)
        lacks = self._lack.pop(told.file)
        why = writable_again_note(told.file, lacks)
        self._say(why)
        return Event(kind=EventKind.NOTE, stage=told.stage, count=lacks, what=LINES, why=why)
