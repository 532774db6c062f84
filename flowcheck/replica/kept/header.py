"""The first bytes of a replica's file: what it is, and which steps it holds.

    0        magic, version, copies, sizes, checksum  written once
    128      in_step: the step being applied, 0       written by the updater
    256 ...  a commit slot per copy, with a checksum  written when that copy is whole
    4096     description: layout and sections (JSON)  written once
    ...      the copies: sections apart within a page only a copy without a slot changes

The newest step is the slot with the highest sequence number; the others are the steps before it,
whole as long as their slot is. A copy's slot is cleared before the copy is written to, so a process
killed at any instant leaves that one slot empty or torn (told by its checksum) and all others as
they were. What is promised is the death of the process; for the death of the machine there are
checkpoints.
"""

from __future__ import annotations

import errno
import math
import mmap
import struct
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from flowcheck.errors import RingError, StateError
from flowcheck.replica.layout import STORED_AS, Layout

MAGIC = b"FCSTATE\n"
VERSION = 5
HEADER_BYTES = 4096
PAGE_BYTES = 4096
APART_BYTES = 512  # whole cache lines, which is torch's own alignment of a tensor
"""How far into a page each section begins behind where the one before it does, and a copy's first
behind the third of the copy before. A step reads an element of four places and writes it to three
more: where their addresses differ by whole pages, a core, which first tells them apart by the
address within a page, lets loads wait for stores that have nothing to do with them."""
_FIXED = struct.Struct("<8sIIQQQQ")  # magic, version, copies, then Sizes
_CHECKSUM = struct.Struct("<Q")
_IN_STEP_OFFSET = 128
_IN_STEP = struct.Struct("<Q")
_SLOTS_OFFSET = 256
_SLOT = struct.Struct("<QQII16s16s")
_SLOT_BYTES = 64  # with the checksum, in a cache line of its own
COPIES_MAX = (HEADER_BYTES - _SLOTS_OFFSET) // _SLOT_BYTES


class Per(Enum):
    """What a section has one of its entries for."""

    ELEMENT = "element"
    """Each element of the layout, where that lies."""
    PARAMETER = "parameter"
    """Each parameter one number."""
    PLACE = "place"
    """Tensors of shapes or types of their own, or of some parameters: bytes."""
    REPLICA = "replica"
    """Numbers of the whole."""


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor of a section of places: whose, its first byte there, torch's word of its dtype (or
    Python's of a number), sizes and strides."""

    parameter: int
    start: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(STORED_AS[self.dtype]).itemsize


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A flat array of each copy; `dtype` is numpy's word, `offset` is bytes into the copy."""

    name: str
    dtype: str
    elements: int
    offset: int = 0
    per: Per = Per.ELEMENT
    holds: str = ""
    """torch's word of its dtype, or Python's of its numbers; empty: what parameters have. One of
    ELEMENT that has a type of its own lies as a layout of that type does."""
    places: tuple[Place, ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.elements * np.dtype(self.dtype).itemsize


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a state file says about itself."""

    layout: Layout
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """A whole step: which copy holds it and what it is."""

    sequence: int
    step: int
    copy: int
    has_optimizer_state: bool
    """False until the optimizer has made its state in its first step."""
    digest: bytes
    fingerprint: bytes
    """16 bytes that stand for the optimizer's configuration."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the description, where copy 0 begins, of one copy, of the whole file; and how many
    copies there are."""

    description: int
    data_offset: int
    copy: int
    total: int
    copies: int


def write_fixed(memory: mmap.mmap, sizes: Sizes, description: Description) -> None:
    """Everything of the header that never changes; `memory` is a fresh file."""
    text = encode(description)
    fixed = _FIXED.pack(
        MAGIC, VERSION, sizes.copies, sizes.description, sizes.data_offset, sizes.copy, sizes.total
    )
    memory[HEADER_BYTES : HEADER_BYTES + len(text)] = text
    memory[: len(fixed)] = fixed
    _CHECKSUM.pack_into(memory, len(fixed), xxhash.xxh3_64_intdigest(fixed + text))


def encode(description: Description) -> bytes:
    """The description as the file keeps it."""
    return msgspec.json.encode(description)


def read_fixed(path: Path, memory: mmap.mmap) -> tuple[Sizes, Description]:
    """What the file says about itself. Raises RingError where it is not one of ours, is of another
    version, of another size, or damaged."""
    if len(memory) < HEADER_BYTES:
        raise RingError(errno.EINVAL, f"{path}: {len(memory)} bytes are no replica state")
    magic, version, copies, *numbers = _FIXED.unpack_from(memory, 0)
    if magic != MAGIC:
        raise RingError(errno.EINVAL, f"{path}: no replica state (starts with {magic!r})")
    if version != VERSION:
        sentence = (
            f"{path}: state of layout version {version}, this program speaks {VERSION}: go on with "
            "the release that made it, or begin anew in another run directory"
        )
        raise RingError(errno.EPROTO, sentence)
    description_bytes, data_offset, copy_bytes, total = numbers
    sizes = Sizes(description_bytes, data_offset, copy_bytes, total, copies)
    if len(memory) != sizes.total:
        sentence = f"{path}: {len(memory)} bytes, its header says {sizes.total}; it was cut"
        raise RingError(errno.EINVAL, sentence)
    text = memory[HEADER_BYTES : HEADER_BYTES + sizes.description]
    (stored,) = _CHECKSUM.unpack_from(memory, _FIXED.size)
    if stored != xxhash.xxh3_64_intdigest(memory[: _FIXED.size] + text):
        raise RingError(errno.EBADMSG, f"{path}: the header's checksum does not fit; it is damaged")
    return sizes, msgspec.json.decode(text, type=Description)


def read_in_step(memory: mmap.mmap) -> int:
    """The step being applied; 0 for none."""
    return int(_IN_STEP.unpack_from(memory, _IN_STEP_OFFSET)[0])


def write_in_step(memory: mmap.mmap, step: int) -> None:
    _IN_STEP.pack_into(memory, _IN_STEP_OFFSET, step)


def read_commits(memory: mmap.mmap, copies: int = COPIES_MAX) -> list[Commit]:
    """Every whole step the file holds, the newest last. copies: the slots of others are empty."""
    found = [commit for copy in range(copies) if (commit := _read_slot(memory, copy))]
    return sorted(found, key=lambda commit: commit.sequence)


def read_commit(path: Path, memory: mmap.mmap) -> Commit:
    """The newest whole step. Raises StateError where there is none."""
    whole = read_commits(memory)
    if not whole:
        raise StateError(f"{path}: no commit slot is whole; the replica must be made anew")
    return whole[-1]


def write_commit(memory: mmap.mmap, commit: Commit) -> None:
    """Says that the commit's copy is whole: its slot, in one store."""
    raw = _SLOT.pack(
        commit.sequence,
        commit.step,
        commit.copy,
        commit.has_optimizer_state,
        commit.digest,
        commit.fingerprint,
    )
    slot = raw + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))
    at = _SLOTS_OFFSET + commit.copy * _SLOT_BYTES
    memory[at : at + len(slot)] = slot


def clear_commit(memory: mmap.mmap, copy: int) -> None:
    """Says that a copy is whole no longer, before anything is written to it."""
    at = _SLOTS_OFFSET + copy * _SLOT_BYTES
    memory[at : at + _SLOT_BYTES] = bytes(_SLOT_BYTES)


def peek(path: Path) -> tuple[Commit, int]:
    """(last commit, step being applied or 0) of a replica that another process may be writing."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        read_fixed(path, memory)
        return read_commit(path, memory), read_in_step(memory)


def peek_versions(path: Path) -> tuple[Layout, tuple[int, ...]]:
    """(layout, whole steps ascending) of a replica that another process may be writing."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        _, description = read_fixed(path, memory)
        return description.layout, tuple(commit.step for commit in read_commits(memory))


def _read_slot(memory: mmap.mmap, copy: int) -> Commit | None:
    offset = _SLOTS_OFFSET + copy * _SLOT_BYTES
    raw = memory[offset : offset + _SLOT.size]
    (stored,) = _CHECKSUM.unpack_from(memory, offset + _SLOT.size)
    sequence, step, of_copy, has_state, digest, fingerprint = _SLOT.unpack(raw)
    if sequence == 0 or of_copy != copy or stored != xxhash.xxh3_64_intdigest(raw):
        return None
    return Commit(sequence, step, copy, bool(has_state), digest, fingerprint)


assert _SLOT.size + _CHECKSUM.size <= _SLOT_BYTES
