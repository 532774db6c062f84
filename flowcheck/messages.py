"""Every message that FlowCheck's processes send each other over ZeroMQ, its JSON encoding, and
the lines of audits.jsonl.

Shared memory carries the data and is the truth; a message only says *when*. JSON, so that a
logged message is readable as it is.
"""

from __future__ import annotations

import msgspec

from flowcheck.errors import DECODE_ERRORS, MessageError
from flowcheck.findings.catalog.refused_commands import NOT_A_MESSAGE
from flowcheck.findings.finding import Finding
from flowcheck.step_numbers import Iteration, Step


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Base of all messages; the tag is the class name."""


class Hello(Message, frozen=True, kw_only=True):
    """A stage is up, speaks this layout and works from here on."""

    stage: str
    pid: int
    layout_version: int


class FramesReady(Message, frozen=True, kw_only=True):
    """Capture published frames up to `head` of ring number `ring` (a nudge)."""

    ring: int
    head: int


class SpanReady(Message, frozen=True, kw_only=True):
    """The parser marked slots up to `parsed` of ring number `ring` (a nudge)."""

    ring: int
    parsed: int


class SourceEnded(Message, frozen=True, kw_only=True):
    """Nothing more will come into ring number `ring`; it received `frames` in all."""

    ring: int
    frames: int


class JobLearned(Message, frozen=True, kw_only=True):
    """The learned job lies in this file, its initial weights beside it."""

    path: str


class ShardReady(Message, frozen=True, kw_only=True):
    """Every byte of `iteration` is in `generation` of the shard (a nudge: its state is the
    truth)."""

    iteration: Iteration
    generation: int


class StepArrived(Message, frozen=True, kw_only=True):
    """The last byte of `step`, as the trainer counts them, was placed."""

    step: Step
    time_ns: int
    """Since 1970."""


class StepApplied(Message, frozen=True, kw_only=True):
    """The replica applied `step`; its generation is free again."""

    step: Step
    seconds: float
    digest: str
    tainted: int = 0
    """Elements of the parameters that rest on bytes which never came."""


class StepLost(Message, frozen=True, kw_only=True):
    """`step` cannot be rebuilt: these byte ranges of the gradient never came."""

    step: Step
    missing: tuple[tuple[int, int], ...]
    why: Finding | None = None


class StepShort(Message, frozen=True, kw_only=True):
    """`missing_bytes` of `step` never came; the rest is applied."""

    step: Step
    missing_bytes: int
    why: Finding


class CopiesDiffer(Message, frozen=True, kw_only=True):
    """Two copies of `conflict_bytes` of `step` differ; both values are in the file at `path`."""

    step: Step
    conflict_bytes: int
    path: str
    """Empty: it could not be written."""
    why: Finding


class StepDoubtful(Message, frozen=True, kw_only=True):
    """`step` was applied, and then copies came that differ within `conflict_bytes` of it."""

    step: Step
    conflict_bytes: int
    elements: int = 0
    """Elements of the parameters that are tainted since `step` for it; 0: they are not known, and
    all of the replica is in doubt."""
    called_exact_to: Step | None = None
    """The last step that the replica called exact in them; None: all since are in doubt."""
    parameters: dict[str, tuple[tuple[int, int], ...]] = {}
    """{parameter: its elements, [start, stop)}, the first ones"""


class StepSaved(Message, frozen=True, kw_only=True):
    """A checkpoint of `step` is durable."""

    step: Step
    name: str
    """Of the checkpoint, at the target."""
    bytes: int
    seconds: float
    time_ns: int
    """When it was, since 1970."""


class SaveFailed(Message, frozen=True, kw_only=True):
    """A checkpoint could not be saved."""

    step: Step | None
    """None: the target could not even be read for what it holds."""
    why: Finding
    attempts: int
    """That failed since one was saved."""


class Drained(Message, frozen=True, kw_only=True):
    """A stage has nothing left to do, and nothing more can reach it."""

    stage: str
    steps: int = 0
    """Steps that were completed, for the extractor; applied, for the updater."""
    why: Finding | None = None
    """What kept it from more; None if nothing did."""


class Fault(Message, frozen=True, kw_only=True):
    """A stage cannot go on."""

    stage: str
    finding: Finding


class Note(Message, frozen=True, kw_only=True):
    """Something the operator should know, such as memory without huge pages."""

    stage: str
    finding: Finding


class Unwritten(Message, frozen=True, kw_only=True):
    """Lines of a file of records found no room, or there is room again; steps are applied all the
    same."""

    stage: str
    file: str
    lines: int
    """Since the last one of these."""
    full: Finding | None
    """Why; None: there is room again."""


class Stop(Message, frozen=True, kw_only=True):
    """The stage must end; where `drain`, after what it has already received."""

    reason: Finding
    drain: bool = False


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of audits.jsonl: what `status` and later checkpoints say about the replica."""

    step: Step
    passed: bool
    file: str
    """What it was held against."""
    tensors: int
    first_difference: str | None = None
    tainted_elements: int = 0
    """Of the tensors: not compared, as they rest on bytes that no mirror brought."""
    others: dict[str, str] = {}
    """{tensor of the file that the replica does not have: digest}: what a restore may rest on."""
    optimizer: bool = False
    """Whether the state of the optimizer was compared as well."""
    evidence: tuple[Finding, ...] = ()
    """The first difference by its element, and what the file holds there instead."""
    base: bool = False
    """True: the operator gave this file as the replica's base, so that differences before this
    line tell nothing of the replica any more."""


def parse_audit_record(line: bytes) -> AuditRecord | None:
    """A line of audits.jsonl; None of one that a full disk or a kill tore, also where the next one
    was written behind it."""
    try:
        return msgspec.json.decode(line, type=AuditRecord)
    except DECODE_ERRORS:
        return None


_CLOSED_SET = (
    Hello
    | FramesReady
    | SpanReady
    | SourceEnded
    | JobLearned
    | ShardReady
    | StepArrived
    | StepApplied
    | StepLost
    | StepShort
    | StepDoubtful
    | CopiesDiffer
    | StepSaved
    | SaveFailed
    | Drained
    | Fault
    | Note
    | Unwritten
    | Stop
)

_DECODER = msgspec.json.Decoder(_CLOSED_SET)
_ENCODER = msgspec.json.Encoder()


def encode(message: Message) -> bytes:
    """One frame of JSON."""
    return _ENCODER.encode(message)


def decode(frame: bytes) -> Message:
    """Raises MessageError for anything `encode` did not write."""
    try:
        message: Message = _DECODER.decode(frame)
    except DECODE_ERRORS as error:
        raise MessageError(NOT_A_MESSAGE(frame=repr(frame[:60]), error=error)) from error
    return message
