"""The history of a chain, line by line: what one line of events.jsonl says.

A line holds the fields of `Event`, and of a message those of the message beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from flowcheck.errors import MALFORMED
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
from flowcheck.step_numbers import Step


class Kind(StrEnum):
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
TAKEN = "a copy that differs came after the step was taken"


WHOLE = "the step is taken, and no byte of it lacks: they carried none that was not there"
"""Why packets that no mirror brought, or that came doubtful, are told as healed."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of events.jsonl."""

    time_ns: int = 0
    """Since 1970; 0: a line of before this was written."""
    kind: Kind = Kind.OTHER
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
    Hello: lambda m: {"kind": Kind.UP, "stage": m.stage},
    JobLearned: lambda m: {"kind": Kind.LEARNED, "stage": "extract", "why": m.path},
    StepArrived: lambda m: {"kind": Kind.ARRIVED, "step": m.step, "time_ns": m.time_ns},
    StepApplied: lambda m: {"kind": Kind.APPLIED, "step": m.step, "seconds": m.seconds},
    StepLost: lambda m: {
        "kind": Kind.LOSS,
        "step": m.step,
        "what": STEP,
        "count": 1,
        "bytes": sum(stop - begin for begin, stop in m.missing),
        "why": m.why,
    },
    StepShort: lambda m: {
        "kind": Kind.LOSS,
        "step": m.step,
        "what": BYTES,
        "count": m.missing_bytes,
        "why": m.why,
    },
    StepDoubtful: lambda m: {
        "kind": Kind.LOSS,
        "step": m.step,
        "what": DOUBTFUL,
        "count": m.conflict_bytes,
        "why": TAKEN,
    },
    StepSaved: lambda m: {
        "kind": Kind.SAVE,
        "step": m.step,
        "bytes": m.bytes,
        "seconds": m.seconds,
        "time_ns": m.time_ns,
        "why": m.name,
    },
    SaveFailed: lambda m: {
        "kind": Kind.SAVE_FAILED,
        "step": m.step,
        "why": m.why,
        "count": m.attempts,
    },
    SourceEnded: lambda m: {"kind": Kind.SOURCE_ENDED, "count": m.frames, "what": FRAMES},
    Drained: lambda m: {"kind": Kind.DRAINED, "stage": m.stage, "why": m.why},
    Fault: lambda m: {"kind": Kind.FAULT, "stage": m.stage, "why": m.sentence},
    Note: lambda m: {"kind": Kind.NOTE, "stage": m.stage, "why": m.sentence},
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
        return event if event.kind is not Kind.OTHER else _old(line, event)
    except (*MALFORMED, ValueError, TypeError, OverflowError):
        return None


_OLD = {
    "Hello": Kind.UP,
    "StepApplied": Kind.APPLIED,
    "StepLost": Kind.LOSS,
    "Note": Kind.NOTE,
    "Fault": Kind.FAULT,
}


def _old(line: bytes, event: Event) -> Event | None:
    """Of a line that says what it is by its message's name, and when by seconds alone."""
    told = msgspec.json.decode(line)
    kind = Kind.RESTART if told.get("event") == "restart" else _OLD.get(told.get("type"))
    if kind is None:
        return None
    why, time_ns = told.get("sentence", event.why), int(told.get("time", 0) * 1e9)
    return msgspec.structs.replace(event, kind=kind, time_ns=time_ns, why=why)
