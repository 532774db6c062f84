"""The header of a replica's state file: description, sections, and the commit slots that say
which steps it holds.

    0        magic, version, copies, sizes, checksum  written once
    128      in_step: the step being applied, 0       written by the updater
    192      head: the past that counts, its newest   one word: what makes a step the replica's
    256 ...  a commit slot per copy, with a checksum  written when that copy is whole
    4096     description: layout and sections (JSON)  written once
    ...      the copies: sections apart within a page only a copy without a slot changes

A slot counts where it is of the head's past and its sequence number is no higher than the head's:
the newest step is the one with the highest, the others are the steps before it, whole as long as
their slot is. So one store of one word changes what the file holds, whatever that is:

    a step          its slot, then the head to its number
    going back      the head to the number of an older slot: all later ones count no more
    another past    its slot, of the next past; then the head to that: no other slot counts

What does not count is cleared behind that, and by whoever opens the file before a step is made, so
that no later head makes it count again. A copy's slot is cleared before the copy is written to. A
process killed at any instant so leaves the file as it was before or as it is behind; a slot that
was half written is told by its checksum. What is promised is the death of the process; for the
death of the machine there are checkpoints.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from flowcheck._core import ffi, lib
from flowcheck.errors import RingError, StateError
from flowcheck.findings.catalog.replica_state_errors import (
    COMMITS_CHANGING,
    CUT_OFF,
    HEADER_DAMAGED,
    NO_WHOLE_STEP,
    OTHER_KIND,
    OTHER_VERSION,
    TOO_SHORT,
)
from flowcheck.private_files import open_private
from flowcheck.replica.param_layout import STORED_AS, Layout
from flowcheck.step_numbers import Step

MAGIC = b"FCSTATE\n"
VERSION = 6
HEADER_BYTES = 4096
PAGE_BYTES = 4096
SECTION_STAGGER_BYTES = 512  # whole cache lines, which is torch's own alignment of a tensor
"""How far into a page each section begins behind where the one before it does, and a copy's first
behind the third of the copy before. A step reads an element of four places and writes it to three
more: where their addresses differ by whole pages, a core, which first tells them apart by the
address within a page, lets loads wait for stores that have nothing to do with them."""
_FIXED = struct.Struct("<8sIIQQQQ")  # magic, version, copies, then Sizes
_CHECKSUM = struct.Struct("<Q")
_IN_STEP_OFFSET = 128
_IN_STEP = struct.Struct("<Q")
_HEAD_OFFSET = 192
_HEAD = struct.Struct("<Q")
_SEQUENCE_BITS = 40
"""Of the head: a million million steps. The bits above them are the past's, changed by hand."""
_SLOTS_OFFSET = 256
_SLOT = struct.Struct("<QQHHI16s16s")
_HAS_STATE, _TAINTED = 1, 2  # flags of a slot
_SLOT_BYTES = 64  # with the checksum, in a cache line of its own
READ_ATTEMPTS = 1000
"""Looks at the slots, before they are said never to hold still: one takes microseconds, in which no
step is made; who is taken off its processor meanwhile looks again. A choice: more only delays the
error."""
COPIES_MAX = (HEADER_BYTES - _SLOTS_OFFSET) // _SLOT_BYTES


class EntryPer(Enum):
    """What a section has one of its entries for."""

    ELEMENT = "element"
    """Each element of the layout, where that lies."""
    PARAMETER = "parameter"
    """Each parameter one number."""
    PLACE = "place"
    """Tensors of shapes or types of their own, or of some parameters: bytes."""
    REPLICA = "replica"
    """Numbers of the whole."""


class TensorPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    per: EntryPer = EntryPer.ELEMENT
    holds: str = ""
    """torch's word of its dtype, or Python's of its numbers; empty: what parameters have. One of
    ELEMENT that has a type of its own lies as a layout of that type does."""
    places: tuple[TensorPlace, ...] = ()

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
    step: Step
    copy: int
    has_optimizer_state: bool
    """False until the optimizer has made its state in its first step."""
    digest: bytes
    fingerprint: bytes
    """16 bytes that stand for the optimizer's configuration."""
    lineage: int = 0
    """Which one it is of: another one begins where another state takes the place of all steps."""
    tainted: bool = False
    """Elements of it rest on bytes that never came; the file beside (taint.py) has which."""


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Bytes of the description, where copy 0 begins, of one copy, of the whole file; and how many
    copies there are."""

    description: int
    data_offset: int
    copy: int
    total: int
    copies: int


def write_description(memory: mmap.mmap, sizes: FileSizes, description: Description) -> None:
    """Everything of the header that never changes; `memory` is a fresh file."""
    text = encode_description(description)
    fixed = _FIXED.pack(
        MAGIC, VERSION, sizes.copies, sizes.description, sizes.data_offset, sizes.copy, sizes.total
    )
    memory[HEADER_BYTES : HEADER_BYTES + len(text)] = text
    memory[: len(fixed)] = fixed
    _CHECKSUM.pack_into(memory, len(fixed), xxhash.xxh3_64_intdigest(fixed + text))


def encode_description(description: Description) -> bytes:
    """The description as the file keeps it."""
    return msgspec.json.encode(description)


def read_description(path: Path, memory: mmap.mmap) -> tuple[FileSizes, Description]:
    """What the file says about itself. Raises RingError where it is not one of ours, is of another
    version, of another size, or damaged."""
    if len(memory) < HEADER_BYTES:
        raise RingError(errno.EINVAL, TOO_SHORT(path=path, bytes=len(memory)))
    magic, version, copies, *numbers = _FIXED.unpack_from(memory, 0)
    if magic != MAGIC:
        raise RingError(errno.EINVAL, OTHER_KIND(path=path, begin=repr(magic)))
    if version != VERSION:
        other = OTHER_VERSION(path=path, version=version, own=VERSION)
        raise RingError(errno.EPROTO, other)
    description_bytes, data_offset, copy_bytes, total = numbers
    sizes = FileSizes(description_bytes, data_offset, copy_bytes, total, copies)
    if len(memory) != sizes.total:
        cut = CUT_OFF(path=path, bytes=len(memory), expected=sizes.total)
        raise RingError(errno.EINVAL, cut)
    text = memory[HEADER_BYTES : HEADER_BYTES + sizes.description]
    (stored,) = _CHECKSUM.unpack_from(memory, _FIXED.size)
    if stored != xxhash.xxh3_64_intdigest(memory[: _FIXED.size] + text):
        raise RingError(errno.EBADMSG, HEADER_DAMAGED(path))
    return sizes, msgspec.json.decode(text, type=Description)


def read_step_in_progress(memory: mmap.mmap) -> int:
    """The step being applied; 0 for none."""
    return int(_IN_STEP.unpack(_load(memory, _IN_STEP_OFFSET, _IN_STEP.size))[0])


def write_step_in_progress(memory: mmap.mmap, step: Step) -> None:
    store_words(memory, _IN_STEP_OFFSET, _IN_STEP.pack(step))


def read_commits(memory: mmap.mmap, copies: int = COPIES_MAX) -> list[Commit]:
    """Every whole step the file holds, the newest last. copies: the slots of others are empty.

    Raises StateError where it never held still for as long as a look takes.
    """
    for _ in range(READ_ATTEMPTS):
        past, sequence = read_head(memory)
        raw = _load(memory, _SLOTS_OFFSET, copies * _SLOT_BYTES)
        if read_head(memory) == (past, sequence):
            slots = (_slot_in(raw, copy) for copy in range(copies))
            found = [c for c in slots if c and c.lineage == past and c.sequence <= sequence]
            return sorted(found, key=lambda commit: commit.sequence)
    raise StateError(COMMITS_CHANGING(READ_ATTEMPTS))


def read_commit(path: Path, memory: mmap.mmap) -> Commit:
    """The newest whole step. Raises StateError where there is none."""
    whole = read_commits(memory)
    if not whole:
        raise StateError(NO_WHOLE_STEP(path))
    return whole[-1]


def read_head(memory: mmap.mmap) -> tuple[int, int]:
    """(the past that counts, the highest sequence number that does)"""
    (head,) = _HEAD.unpack(_load(memory, _HEAD_OFFSET, _HEAD.size))
    return head >> _SEQUENCE_BITS, head & ((1 << _SEQUENCE_BITS) - 1)


def write_head(memory: mmap.mmap, commit: Commit) -> None:
    """Makes a commit whose slot is whole the newest one, in one store."""
    store_words(
        memory, _HEAD_OFFSET, _HEAD.pack(commit.lineage << _SEQUENCE_BITS | commit.sequence)
    )


def write_commit(memory: mmap.mmap, commit: Commit) -> None:
    """Says that the commit's copy is whole, and the newest: its slot, which does not count yet,
    then the head."""
    store_words(memory, _SLOTS_OFFSET + commit.copy * _SLOT_BYTES, _slot_of(commit))
    write_head(memory, commit)


def _slot_of(commit: Commit) -> bytes:
    raw = _SLOT.pack(
        commit.sequence,
        commit.step,
        commit.copy,
        _HAS_STATE * commit.has_optimizer_state | _TAINTED * commit.tainted,
        commit.lineage,
        commit.digest,
        commit.fingerprint,
    )
    return raw + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))


def write_commit_again(memory: mmap.mmap, commit: Commit) -> None:
    """The slot of an earlier whole step, where something else is to be said of it. A kill amid it
    leaves a slot that is not whole, and the step is gone."""
    store_words(memory, _SLOTS_OFFSET + commit.copy * _SLOT_BYTES, _slot_of(commit))


def clear_commit(memory: mmap.mmap, copy: int) -> None:
    """Says that a copy is whole no longer, before anything is written to it."""
    at = _SLOTS_OFFSET + copy * _SLOT_BYTES
    if any(_load(memory, at, _SLOT_BYTES)):
        store_words(memory, at, bytes(_SLOT_BYTES))


def store_words(memory: mmap.mmap, at: int, raw: bytes) -> None:
    """The one place that changes what a state file says it holds: words of 8 bytes, each in one
    store, in order, behind all that was written before (dpdk_ext/step/fc_commit.h)."""
    words = ffi.from_buffer("uint64_t[]", memory, require_writable=True) + at // 8
    lib.fc_commit_store(words, ffi.from_buffer("uint64_t[]", raw), len(raw) // 8)


def _load(memory: mmap.mmap, at: int, size_bytes: int) -> bytes:
    """Words of 8 bytes, each in one load, in order, behind all that was read before."""
    raw = bytearray(size_bytes)
    words = ffi.from_buffer("uint64_t[]", memory) + at // 8
    lib.fc_commit_load(words, ffi.from_buffer("uint64_t[]", raw), size_bytes // 8)
    return bytes(raw)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """A replica that another process may be writing, for a look. Raises RingError on an empty
    file."""
    with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
        if not os.fstat(file.fileno()).st_size:  # which cannot be mapped
            raise RingError(errno.EINVAL, TOO_SHORT(path=path, bytes=0))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            yield memory


def peek_commit(path: Path) -> tuple[Commit, int]:
    """(last commit, step being applied or 0) of a replica that another process may be writing."""
    with _mapped(path) as memory:
        read_description(path, memory)
        return read_commit(path, memory), read_step_in_progress(memory)


def peek_description(path: Path) -> Description:
    """What the copies of a replica hold that another process may be writing."""
    with _mapped(path) as memory:
        return read_description(path, memory)[1]


def peek_versions(path: Path) -> tuple[Layout, tuple[Step, ...]]:
    """(layout, whole steps ascending) of a replica that another process may be writing."""
    with _mapped(path) as memory:
        _, description = read_description(path, memory)
        return description.layout, tuple(commit.step for commit in read_commits(memory))


def peek_digests(path: Path) -> dict[Step, str]:
    """{whole step: digest of its state, in hex}, ascending, of a replica that another process may
    be writing."""
    with _mapped(path) as memory:
        read_description(path, memory)
        return {commit.step: commit.digest.hex() for commit in read_commits(memory)}


def peek_tainted(path: Path) -> frozenset[Step]:
    """Those of the whole steps that are tainted, of a replica that another process may be
    writing."""
    with _mapped(path) as memory:
        read_description(path, memory)
        return frozenset(commit.step for commit in read_commits(memory) if commit.tainted)


def _slot_in(slots: bytes, copy: int) -> Commit | None:
    offset = copy * _SLOT_BYTES
    raw = slots[offset : offset + _SLOT.size]
    (stored,) = _CHECKSUM.unpack_from(slots, offset + _SLOT.size)
    sequence, step, of_copy, flags, past, digest, fingerprint = _SLOT.unpack(raw)
    if sequence == 0 or of_copy != copy or stored != xxhash.xxh3_64_intdigest(raw):
        return None
    has_state, tainted = bool(flags & _HAS_STATE), bool(flags & _TAINTED)
    return Commit(sequence, step, copy, has_state, digest, fingerprint, past, tainted)


assert _SLOT.size + _CHECKSUM.size <= _SLOT_BYTES
assert _SLOTS_OFFSET % 8 == 0 and _SLOT_BYTES % 8 == 0
