"""Entries of the step journal that wait for the disk, in shared memory: a killed updater's are
written by the next one.

The file has slots of one size: a head, room for the line, room for the bytes. A slot's head is
written last, and zeroed once the entry is on disk. The updater fills slots and the journal's thread
empties them; neither waits for the other.

An entry is put before anybody can see the changed state, and goes to the disk only once the replica
has committed that: what a kill between the two leaves is let go, where the replica has not got it.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from flowcheck.errors import DECODE_ERRORS
from flowcheck.private_files import open_private
from flowcheck.replica.step_journal.gap_records import RECORD_BYTES, GapInMemory
from flowcheck.replica.step_journal.journal_records import JournalLine
from flowcheck.replica.step_journal.waiting_sizes import (
    HEAD_BYTES,
    LINE_BYTES,
    slot_bytes_of,
    slots_of,
    waiting_bytes,
)

_HEAD = struct.Struct("<QQQQ")  # sequence, bytes of the line, of the payload, xxh3 of all and line
_COMMITTED = struct.Struct("<Q")  # behind the head: 1 once the change is committed
_FILE = struct.Struct("<8sQQ")  # magic, slots, bytes of a slot
_MAGIC = b"FCWAIT2\n"
_EMPTY = bytes(_HEAD.size)
_GAPS_AT = 512
"""Behind `_FILE`: the two gaps, within HEAD_BYTES."""
assert _GAPS_AT + 2 * RECORD_BYTES <= HEAD_BYTES


@dataclass(frozen=True, slots=True)
class WaitingEntry:
    """One that waits."""

    slot: int
    line: JournalLine
    payload: np.ndarray
    """[whole blocks of ALIGN_BYTES] its bytes, then anything; in place."""
    size_bytes: int
    """Of its bytes."""


class WaitingEntries:
    """The slots of one replica's journal."""

    def __init__(self, path: Path, payload_bytes: int) -> None:
        """Takes over what waits at `path`, if that is of the same sizes. payload_bytes: most bytes
        of an entry. Raises OSError where there is no memory."""
        self._slot_bytes = slot_bytes_of(payload_bytes)
        self._slots = slots_of(self._slot_bytes)
        head = _FILE.pack(_MAGIC, self._slots, self._slot_bytes)
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            if os.pread(descriptor, _FILE.size, 0) != head:
                os.ftruncate(descriptor, 0)  # holes read as slots that are empty
            page_bytes = max(os.fstatvfs(descriptor).f_bsize, mmap.PAGESIZE)
            size_bytes = -(-waiting_bytes(payload_bytes) // page_bytes) * page_bytes
            os.posix_fallocate(descriptor, 0, size_bytes)
            # Pages are mapped now: a step must not wait for their faults.
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            self._map = mmap.mmap(descriptor, size_bytes, flags)
        finally:
            os.close(descriptor)
        self._map[: _FILE.size] = head
        self.left_out = GapInMemory(self._map, _GAPS_AT)
        """Changes that found no slot. The updater's alone."""
        self.unwritten = GapInMemory(self._map, _GAPS_AT + RECORD_BYTES)
        """Entries that were taken from here and are not on the disk. The writing thread's alone."""
        held = self._held()
        # A kill within the writing of a head leaves a slot that holds nothing and is not empty.
        for slot in set(range(self._slots)) - {entry.slot for _, entry in held}:
            self._empty(slot)
        self._sequence = max((sequence for sequence, _ in held), default=0)

    def put(self, line: JournalLine, parts: Sequence[np.ndarray]) -> WaitingEntry | None:
        """Has an entry wait for its commit; None: there was no slot for it. parts: its bytes, one
        behind the other. To be called by the updater alone, for entries that `fits`, while no other
        waits for its commit."""
        slot = next((n for n in range(self._slots) if not self._sequence_of(n)), None)
        if slot is None:
            return None
        text, at = msgspec.json.encode(line), 0
        payload, begin = self._payload(slot), self._begin(slot)
        for part in parts:
            raw = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            payload[at : at + raw.size] = raw
            at += raw.size
        self._map[begin + HEAD_BYTES : begin + HEAD_BYTES + len(text)] = text
        self._sequence += 1
        told = self._sequence, len(text), at
        self._mark(slot, committed=False)
        self._map[begin : begin + _HEAD.size] = _HEAD.pack(*told, _check(told, text))
        return WaitingEntry(slot, line, payload, at)

    def fits(self, line: JournalLine, parts: Sequence[np.ndarray]) -> bool:
        """Whether an entry is not larger than a slot."""
        room = self._slot_bytes - HEAD_BYTES - LINE_BYTES
        own = sum(part.nbytes for part in parts) <= room
        return own and len(msgspec.json.encode(line)) <= LINE_BYTES

    def uncommitted(self) -> WaitingEntry | None:
        """The one that waits for its commit; None: none does."""
        own = (entry for _, entry in self._held() if not self._is_committed(entry.slot))
        return next(own, None)

    def commit(self, entry: WaitingEntry) -> None:
        """Its change is committed: it waits for the disk. It carries the gap before it."""
        self.left_out.note(None)
        self._mark(entry.slot, committed=True)

    def withdraw(self, entry: WaitingEntry) -> None:
        """Its change was not made. The gap before it is before the next one."""
        if entry.line.gap is not None:
            self.left_out.note(entry.line.gap)
        self._empty(entry.slot)

    def waiting(self) -> list[WaitingEntry]:
        """Those that wait for the disk, oldest first."""
        held = sorted(self._held(), key=lambda pair: pair[0])
        return [entry for _, entry in held if self._is_committed(entry.slot)]

    def _held(self) -> list[tuple[int, WaitingEntry]]:
        """[(sequence, entry)] of the slots whose head is whole."""
        found = []
        for slot in range(self._slots):
            begin = self._begin(slot)
            sequence, text_bytes, size_bytes, check = _HEAD.unpack_from(self._map, begin)
            if not sequence or text_bytes > LINE_BYTES:
                continue
            text = self._map[begin + HEAD_BYTES : begin + HEAD_BYTES + text_bytes]
            if check != _check((sequence, text_bytes, size_bytes), text):
                continue
            with suppress(*DECODE_ERRORS):
                line = msgspec.json.decode(text, type=JournalLine)
                found.append((sequence, WaitingEntry(slot, line, self._payload(slot), size_bytes)))
        return found

    def remove(self, entry: WaitingEntry) -> None:
        """It waits no more."""
        self._empty(entry.slot)

    def _mark(self, slot: int, *, committed: bool) -> None:
        _COMMITTED.pack_into(self._map, self._begin(slot) + _HEAD.size, committed)

    def _is_committed(self, slot: int) -> bool:
        [committed] = _COMMITTED.unpack_from(self._map, self._begin(slot) + _HEAD.size)
        return bool(committed)

    def _empty(self, slot: int) -> None:
        begin = self._begin(slot)
        self._map[begin : begin + _HEAD.size] = _EMPTY

    def _sequence_of(self, slot: int) -> int:
        sequence, *_ = _HEAD.unpack_from(self._map, self._begin(slot))
        return int(sequence)

    def _begin(self, slot: int) -> int:
        return HEAD_BYTES + slot * self._slot_bytes

    def _payload(self, slot: int) -> np.ndarray:
        begin = self._begin(slot) + HEAD_BYTES + LINE_BYTES
        end = self._begin(slot) + self._slot_bytes
        return np.frombuffer(self._map, np.uint8, end - begin, begin)


def _check(told: tuple[int, int, int], text: bytes) -> int:
    return xxhash.xxh3_64_intdigest(struct.pack("<QQQ", *told) + text)
