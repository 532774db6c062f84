"""events.jsonl: the kinds of events, one line each, and the writer that survives a full disk.

`kind` says what a line is; every line has it. A line holds the fields of `Event`; for a message of
a stage it also holds the message's fields. ops/watch/README.md describes them for other programs.
Lines that found no room are counted. An event tells how many, before the next line that is written.
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
from flowcheck.findings.catalog.chain_processes import RECORDS_WRITTEN_AGAIN
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.lost_steps import COPY_DIFFERED_LATE, TAINTED_LATE
from flowcheck.findings.finding import Finding
from flowcheck.messages import (
    CopiesDiffer,
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
from flowcheck.stages.run_directory.bounded_log_files import EVENTS_BYTES, append_line
from flowcheck.stages.run_directory.disk_full import DiskFullCounter
from flowcheck.stages.stage_table import Position, stage_at
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
    """The replica applied a step."""
    LOSS = "loss"
    """`count` frames, packets or bytes never arrived (`what`), or a step cannot be rebuilt."""
    HEAL = "heal"
    """`count` packets arrived after all, `count` tainted elements are exact again, or the replica
    goes on after a lost step."""
    SILENT = "silent"
    """Nothing of the job arrived for `seconds`, longer than its step time explains."""
    ARRIVES = "arrives"
    """Traffic of the job arrives again, after `seconds`."""
    LINK_DOWN = "link_down"
    """The interface that frames are captured from has no link."""
    LINK_UP = "link_up"
    """It has a link again, after `seconds`."""
    SAVE = "save"
    """A step is durable."""
    SAVE_FAILED = "save_failed"
    AUDIT = "audit"
    AUDIT_SKIPPED = "audit_skipped"
    """A file of a watched folder was not compared, or is wrong whatever the replica holds."""
    ANCHOR = "anchor"
    """A trainer checkpoint replaced the replica's state of a step, or was refused."""
    SOURCE_ENDED = "source_ended"
    DRAINED = "drained"
    NOTE = "note"
    """Something the operator should know."""
    OTHER = "other"
    """A message of a stage that has no kind of its own; `what` names it."""


class CountedThing(StrEnum):
    """What the `count` of an event counts; the values are those of the file."""

    FRAMES = "frames"
    """Frames that reached this machine and found no slot."""
    PACKETS = "packets"
    """Packets that a flow's sequence numbers show and no mirror brought."""
    BYTES = "bytes"
    """Bytes of a step that was applied without them."""
    ELEMENTS = "elements"
    """Elements of the parameters."""
    STEP = "step"
    """A whole step."""
    DIFFERING_BYTES = "differing bytes"
    """Bytes of a step of which two copies have other values."""
    DOUBTFUL_BYTES = "doubtful bytes"
    """Bytes of a step in which two copies differ, where one arrived after the step was applied."""
    LINES = "lines"
    """Of a note: records that were not written, as their file system was full."""


FRAMES, PACKETS, BYTES = CountedThing.FRAMES, CountedThing.PACKETS, CountedThing.BYTES
ELEMENTS = CountedThing.ELEMENTS
STEP, DOUBTFUL, LINES = CountedThing.STEP, CountedThing.DOUBTFUL_BYTES, CountedThing.LINES


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of events.jsonl."""

    time_ns: int = 0
    """Nanoseconds since 1970; 0: written by a version that did not record it."""
    kind: EventKind = EventKind.OTHER
    job: int = 1
    """Number of the job that it belongs to; 1 for the ports as a whole."""
    stage: str = ""
    step: Step | None = None
    count: int = 0
    what: str = ""
    """A CountedThing; of kind OTHER, and of what later releases count, another name."""
    name: str = ""
    """Name of a checkpoint at the target."""
    path: str = ""
    """Path of a file: the learned job, or the trainer's file that an audit or an anchor read."""
    why: Finding | None = None
    seconds: float = 0.0
    bytes: int = 0
    passed: bool | None = None
    """Whether an audit passed, or a trainer's file was taken."""

    @property
    def detail(self) -> str:
        """What is shown beside its kind and numbers: the reason, a checkpoint's name or a file."""
        return str(self.why) if self.why is not None else self.name or self.path


def tainted_late(told: StepDoubtful) -> Finding:
    """Why elements are tainted since a step that was called exact."""
    return TAINTED_LATE(
        step=told.step,
        bytes=told.conflict_bytes,
        elements=told.elements,
        to=told.called_exact_to,
    )


_OF_MESSAGE: dict[type[Message], Callable[[Any], dict[str, Any]]] = {
    Hello: lambda m: {"kind": EventKind.UP, "stage": m.stage},
    JobLearned: lambda m: {
        "kind": EventKind.LEARNED,
        "stage": stage_at(Position.TAIL).name,
        "path": m.path,
    },
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
        "what": ELEMENTS if m.elements else DOUBTFUL,
        "count": m.elements or m.conflict_bytes,
        "why": COPY_DIFFERED_LATE() if m.called_exact_to is None else tainted_late(m),
    },
    CopiesDiffer: lambda m: {
        "kind": EventKind.LOSS,
        "step": m.step,
        "what": CountedThing.DIFFERING_BYTES,
        "count": m.conflict_bytes,
        "path": m.path,
        "why": m.why,
    },
    StepSaved: lambda m: {
        "kind": EventKind.SAVE,
        "step": m.step,
        "bytes": m.bytes,
        "seconds": m.seconds,
        "time_ns": m.time_ns,
        "name": m.name,
    },
    SaveFailed: lambda m: {
        "kind": EventKind.SAVE_FAILED,
        "step": m.step,
        "why": m.why,
        "count": m.attempts,
    },
    SourceEnded: lambda m: {"kind": EventKind.SOURCE_ENDED, "count": m.frames, "what": FRAMES},
    Drained: lambda m: {"kind": EventKind.DRAINED, "stage": m.stage, "why": m.why},
    Fault: lambda m: {"kind": EventKind.FAULT, "stage": m.stage, "why": m.finding},
    Note: lambda m: {"kind": EventKind.NOTE, "stage": m.stage, "why": m.finding},
}


def _named(message: Message) -> dict[str, Any]:
    """Of a message that has no kind of its own."""
    return {"what": type(message).__name__}


def event_of(message: Message, *, job: int, now_ns: int) -> Event:
    """The event that a message of a stage stands for."""
    own = _OF_MESSAGE.get(type(message))
    told = _named(message) if own is None else own(message)
    return Event(**({"time_ns": now_ns, "job": job} | told))


def message_fields(message: Message) -> dict[str, Any]:
    """The fields of a message's line, for other programs: the message's own, and the sentence of a
    finding. Its tag is left out: `kind` says what the line is."""
    fields: dict[str, Any] = msgspec.to_builtins(message)
    del fields["type"]
    if isinstance(message, Note | Fault):
        fields["sentence"] = str(message.finding)
        del fields["finding"]
    return fields


def line_of(event: Event, more: dict[str, Any]) -> bytes:
    """The line of an event. more: further fields of the line, for other programs."""
    first = {"kind": event.kind, "time": round(event.time_ns / 1e9, 3)}
    # `kind` again: a message may have a field of that name, and an event leaves out its default.
    own = msgspec.to_builtins(event) | {"kind": event.kind}
    return msgspec.json.encode(first | more | own)


def read_event(line: bytes) -> Event | None:
    """The event of a line; None: the line is incomplete, or a later version wrote it."""
    try:
        event = msgspec.json.decode(line, type=Event)
        if event.kind is not EventKind.OTHER:
            return event
    except msgspec.ValidationError:
        pass
    except DECODE_ERRORS:
        return None
    try:
        return _earlier_event(msgspec.json.decode(line, type=dict[str, Any]))
    except (*DECODE_ERRORS, ValueError, TypeError, OverflowError):
        return None


_KIND_OF_TYPE = {
    "Hello": EventKind.UP,
    "StepApplied": EventKind.APPLIED,
    "StepLost": EventKind.LOSS,
    "Note": EventKind.NOTE,
    "Fault": EventKind.FAULT,
}


def _earlier_event(told: dict[str, Any]) -> Event | None:
    """The event of an earlier version's line: `why` is a sentence, a checkpoint's name or a file.
    In the first version's lines, the message's name is the kind, and only `seconds` tells the
    time."""
    if "kind" not in told:
        kind = _KIND_OF_TYPE.get(told.get("type", ""))
        kind = EventKind.RESTART if told.get("event") == "restart" else kind
        if kind is None:
            return None
        why = told.get("sentence", told.get("why"))
        told = told | {"kind": kind, "time_ns": int(told.get("time", 0) * 1e9), "why": why}
    why = told.pop("why", None)
    event = msgspec.convert(told, Event)
    if event.kind is EventKind.OTHER:
        return None
    if why is None or why == "":
        return event
    if not isinstance(why, str):
        return msgspec.structs.replace(event, why=msgspec.convert(why, Finding))
    if event.kind is EventKind.SAVE:
        return msgspec.structs.replace(event, name=why)
    if event.kind is EventKind.LEARNED or (
        event.kind in (EventKind.AUDIT, EventKind.ANCHOR) and event.passed
    ):
        return msgspec.structs.replace(event, path=why)
    return msgspec.structs.replace(event, why=earlier_finding(why))


class EventLogWriter:
    """Writes events.jsonl of one run, and counts lines that found no room there or in the updater's
    step records."""

    def __init__(self, events: Path, say: Callable[[Finding], None]) -> None:
        self._events, self._say = events, say
        self._own = DiskFullCounter(events)
        self._lack: Counter[str] = Counter()
        """Lines of other files, since there was room for them last."""
        self._full: dict[str, Finding] = {}
        self._others = 0

    @property
    def lines(self) -> int:
        """Lines of all files that found no room since the chain began."""
        return self._own.count + self._others

    @property
    def full(self) -> tuple[Finding, ...]:
        """A finding for each file that has no room at present."""
        return tuple(found for found in (self._own.full, *self._full.values()) if found)

    def append(self, line: bytes) -> bool:
        """Writes a line where there is room. Returns whether an event before it told how many lines
        found none."""
        return self._put([line])

    def note_room_again(self) -> bool:
        """Writes the event that there is room again, without another line after it. Returns whether
        it did."""
        return bool(self._own.lacks) and self._put([])

    def _put(self, lines: list[bytes]) -> bool:
        lacks, was_full = self._own.lacks, self._own.full is not None
        if lacks:
            why = RECORDS_WRITTEN_AGAIN(file=self._events, lines=lacks)
            over = Event(
                kind=EventKind.NOTE, time_ns=time.time_ns(), count=lacks, what=LINES, why=why
            )
            lines = [line_of(over, {}), *lines]
        told = len(lines) - bool(lacks)

        def write() -> None:
            append_line(self._events, b"\n".join(lines), EVENTS_BYTES)

        if not self._own.attempt(write, told):
            if not was_full and (full := self._own.full) is not None:
                self._say(full)
            return False
        if lacks:
            self._own.lacks = 0
            self._say(RECORDS_WRITTEN_AGAIN(file=self._events, lines=lacks))
        return bool(lacks)

    def count_unwritten(self, told: Told) -> Event | None:
        """Counts what a stage reports about a file of its own. Returns an event once there is room
        again, else None."""
        self._others += told.lines
        self._lack[told.file] += told.lines
        if told.full is not None:
            if told.file not in self._full:
                self._say(told.full)
            self._full[told.file] = told.full
            return None
        self._full.pop(told.file, None)
        lacks = self._lack.pop(told.file)
        why = RECORDS_WRITTEN_AGAIN(file=told.file, lines=lacks)
        self._say(why)
        return Event(kind=EventKind.NOTE, stage=told.stage, count=lacks, what=LINES, why=why)
