"""What a copy and the chain that it follows say to each other: HTTP requests with the copy's
position, and answers with a head and blocks of bytes.

GET /training    what is known of the training job
GET /next?...    the change behind the copy's position, once there is one
GET /state?...   a whole state

A body is a prefix, the head (JSON), and the parts that it names, each in blocks of BLOCK_BYTES with
a digest behind each. Everything that is read here may be a stranger's: sizes are checked first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum
from typing import TypeVar
from urllib.parse import parse_qs, urlencode

import msgspec
import numpy as np
import xxhash

from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog.replica_copies import COPY_ANSWER
from flowcheck.findings.finding import Finding
from flowcheck.replica.state_digest import StateId
from flowcheck.replica.step_journal.journal_records import JournalLine
from flowcheck.stages.job_state.job_life import JobLife
from flowcheck.stages.replica_copies.copy_epoch import Epoch
from flowcheck.step_numbers import Step

BLOCK_BYTES = 1 << 20
"""Bytes that have one digest. A choice: larger sends more again for a wrong byte, smaller costs
calls."""
DIGEST_BYTES = 16
PREFIX = struct.Struct("<Q16s")
"""Bytes of the head, and its digest."""
HEAD_BYTES_MAX = 32 << 20
"""Most bytes of a head: the names and shapes of a model's parameters, with room."""
PATH_STATES = 256
"""Most states that an answer names. A choice: a ring holds fewer changes."""
PARTS_MAX = 4096
"""Most parts of an answer: a replica has some tens of sections."""
PART_BYTES_MAX = 1 << 44
"""Most bytes of one part: sixteen terabytes, more than any machine holds."""
Told = TypeVar("Told", bound=msgspec.Struct)


class CopyPosition(msgspec.Struct, frozen=True):
    """Where a copy is."""

    state: StateId
    """Its newest state."""
    source: str = ""
    """Which life of a chain `sequence` counts changes of; "": none."""
    sequence: int = 0
    """The last change that it has."""


class AnswerKind(StrEnum):
    """What a chain has for a copy at a position."""

    NOTHING = "nothing"
    """The copy has everything; asked again, it gets the next change."""
    CHANGE = "change"
    """The next change."""
    ELSEWHERE = "elsewhere"
    """No change that is still there leads on from the copy's state."""
    STATE = "state"
    """A whole state."""
    TAINTED = "tainted"
    """A whole state is needed, and the newest one has tainted elements: it cannot be given."""
    TRAINING = "training"
    """What is known of the training job."""


class PathState(msgspec.Struct, frozen=True):
    """A state that the chain's replica came by in its present past."""

    state: StateId
    sequence: int
    """The first change that led to it or left it as it was, of those that are still there."""


class CopyAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The head of an answer."""

    kind: AnswerKind
    epoch: Epoch
    """Of the chain as it is now."""
    source: str
    """Which life of the chain this is."""
    place: str
    """Of which run directory."""
    newest: StateId
    assumed: tuple[Finding, ...] = ()
    """What the chain's replica rests on, and what is in doubt of it."""
    parts: tuple[int, ...] = ()
    """Bytes of each part that follows."""
    first: int = 0
    """The first block that follows, of the one part of a change."""
    line: JournalLine | None = None
    """CHANGE: what it is."""
    sequence: int = 0
    """CHANGE, STATE: its number."""
    incarnation: int = 0
    """CHANGE: the training job's when it was made."""
    life: JobLife | None = None
    """CHANGE, STATE: of what it leads to; None: that was changing just then, or an earlier release
    answers."""
    path: tuple[PathState, ...] = ()
    """ELSEWHERE: states that lead on to the newest one, oldest first."""
    state: StateId | None = None
    """STATE: which."""
    sections: tuple[tuple[str, str, int], ...] = ()
    """STATE: (name, numpy's dtype, elements) of each part but the last, which is what the module
    holds beside the parameters as a safetensors file; of no bytes where nothing is known of it."""
    description: bytes = b""
    """STATE: layout and sections of the replica (`encode_description`)."""
    training: bytes = b""
    """TRAINING: a TrainingSpec."""


def query_of(position: CopyPosition, epoch: Epoch, first: int = 0) -> str:
    """The query of a request. epoch: the highest that the copy knows; first: the first block that
    is wanted of the change."""
    step, digest = position.state
    told = {
        "step": step,
        "digest": digest,
        "source": position.source,
        "sequence": position.sequence,
    }
    own = {"epoch": str(epoch), "first": first}
    return urlencode(told | own)


class CopyRequest(msgspec.Struct, frozen=True):
    """A request of a copy."""

    position: CopyPosition
    epoch: Epoch
    first: int


def request_of(query: str) -> CopyRequest:
    """Reads a query. Raises StateError where it is none of `query_of`."""
    try:
        told = {key: values[-1] for key, values in parse_qs(query, max_num_fields=16).items()}
        numbers = [_whole(one) for one in told["epoch"].split(".")]
        position = CopyPosition(
            (Step(_whole(told["step"])), _hex(told["digest"])),
            _hex(told.get("source", "")),
            _whole(told["sequence"]),
        )
        if len(numbers) != len(Epoch.__struct_fields__):
            raise ValueError(told["epoch"])
        return CopyRequest(position, Epoch(*numbers), _whole(told.get("first", "0")))
    except (KeyError, ValueError) as error:
        raise StateError(
            COPY_ANSWER(what=f"a query that lacks or misstates {error!s:.60}")
        ) from error


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) >= 1 << 63:
        raise ValueError("a number")
    return int(text)


def _hex(text: str) -> str:
    if text and not _is_name(text):
        raise ValueError("a digest")
    return text


def encode_head(answer: CopyAnswer) -> bytes:
    """Prefix and head."""
    head = msgspec.json.encode(answer)
    return PREFIX.pack(len(head), xxhash.xxh3_128_digest(head)) + head


def body_bytes(answer: CopyAnswer, head_bytes: int) -> int:
    """Bytes of a body. head_bytes: of `encode_head`."""
    return head_bytes + sum(
        size + DIGEST_BYTES * len(spans)
        for part in answer.parts
        for spans in [tuple(blocks(part, answer.first))]
        for size in [sum(stop - start for start, stop in spans)]
    )


def blocks(size_bytes: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """(begin, end) of the blocks of a part, from the block `first` on."""
    for begin in range(first * BLOCK_BYTES, size_bytes, BLOCK_BYTES):
        yield begin, min(begin + BLOCK_BYTES, size_bytes)


def digest_of(block: np.ndarray) -> bytes:
    """That follows a block of bytes."""
    return xxhash.xxh3_128_digest(block.data)


def head_size(prefix: bytes) -> int:
    """Bytes of the head that follows. Raises StateError where they are too many."""
    size, _ = PREFIX.unpack(prefix)
    if not 0 < size <= HEAD_BYTES_MAX:
        raise StateError(COPY_ANSWER(what=f"a head of {size} bytes"))
    return int(size)


def decode_head(prefix: bytes, head: bytes) -> CopyAnswer:
    """The head, checked as far as it can be without the copy. Raises StateError."""
    if PREFIX.unpack(prefix)[1] != xxhash.xxh3_128_digest(head):
        raise StateError(COPY_ANSWER(what="a head with another digest"))
    try:
        answer = msgspec.json.decode(head, type=CopyAnswer)
    except DECODE_ERRORS as error:
        raise StateError(COPY_ANSWER(what=f"a head that cannot be read: {error!s:.80}")) from error
    why = _wrong(answer)
    if why:
        raise StateError(COPY_ANSWER(what=why))
    return answer


def _is_name(text: str) -> bool:
    return len(text) == 2 * DIGEST_BYTES and not set(text) - set("0123456789abcdef")


def _wrong(answer: CopyAnswer) -> str:
    sizes = answer.parts
    if len(sizes) > PARTS_MAX or any(not 0 <= size <= PART_BYTES_MAX for size in sizes):
        return "parts of impossible sizes"
    numbers = (*msgspec.structs.astuple(answer.epoch), answer.sequence, answer.first)
    if any(not 0 <= number < 1 << 63 for number in numbers):
        return "numbers that are out of bounds"
    states = [answer.newest, *(one.state for one in answer.path)]
    if answer.line is not None:
        states += [answer.line.before, answer.line.behind]
    if answer.state is not None:
        states.append(answer.state)
    if any(not 0 <= step < 1 << 63 or len(digest) != 2 * DIGEST_BYTES for step, digest in states):
        return "a state that is none"
    names = answer.source, answer.place
    if any(not _is_name(name) for name in names) or len(answer.path) > PATH_STATES:
        return "a source that is none"
    change = answer.kind is AnswerKind.CHANGE
    if change != (answer.line is not None) or (change and len(sizes) != 1):
        return "a change without its bytes"
    state = answer.kind is AnswerKind.STATE
    if state != (answer.state is not None) or (state and len(sizes) != len(answer.sections) + 1):
        return "a state without its bytes"
    return ""
