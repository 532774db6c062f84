"""The newest changes of a replica, in shared memory: the updater puts them there, and the process
that gives them to copies reads them.

The file has a head and slots of one size. A slot's head is zeroed first and written last; a slot
with a number is whole. The oldest change makes room for a new one, whoever reads it: a reader looks
at the slot's head again behind what it read, and blocks have digests. Nobody waits for anybody.

A change is put before anybody can see the changed state and counts once the replica has committed
it, as of the step journal (replica/step_journal/waiting_entries.py).
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from flowcheck.errors import DECODE_ERRORS, RingError
from flowcheck.findings.catalog.replica_copies import NO_CHANGE_RING
from flowcheck.private_files import open_private
from flowcheck.replica.state_digest import StateId
from flowcheck.replica.step_journal.journal_records import ChangeKind, JournalLine
from flowcheck.stages.replica_copies.change_ring_sizes import (
    LINE_BYTES,
    PAGE_BYTES,
    change_slot_bytes,
    ring_bytes,
)
from flowcheck.stages.replica_copies.copy_epoch import ID_BYTES, Epoch
from flowcheck.stages.replica_copies.copy_records import RunCount

_FILE = struct.Struct("<8sQQ16sQQ16s")
"""Magic, slots, bytes of a slot, which life of the chain, stated epoch, number of the run, place
of the run directory."""
_MAGIC = b"FCRING1\n"
_INCARNATION_AT, _LAST_AT = 1024, 1032
"""Each one word: the training job's incarnation, and the number of the last change that counts."""
_WORD = struct.Struct("<Q")
_HEAD = struct.Struct("<QQQQQ")
"""Number of the change, bytes of the line, of the payload, incarnation, xxh3 of all and the
line."""
_COMMITTED_AT = 64
NO_PAYLOAD = (1 << 64) - 1
"""In place of the bytes of a payload that is larger than a slot, or that there is none of: a whole
state leads on from there."""


@dataclass(frozen=True, slots=True)
class RingChange:
    """A change that the ring holds."""

    sequence: int
    incarnation: int
    line: JournalLine
    committed: bool
    payload: np.ndarray | None
    """[bytes] in place, good while `ChangeRing.is_held`; None: it has to come by a whole state."""


class ChangeRing:
    """The file, as its writer or as a reader has it."""

    def __init__(self, memory: mmap.mmap) -> None:
        """Use `open_for_writing` or `open`."""
        self._map = memory
        magic, slots, slot_bytes, source, stated, run, place = _FILE.unpack_from(memory)
        self._slots, self._slot_bytes = int(slots), int(slot_bytes)
        self._stated, self._run = int(stated), int(run)
        if magic != _MAGIC or len(memory) < PAGE_BYTES + self._slots * self._slot_bytes:
            raise RingError(0, NO_CHANGE_RING())
        self.source: str = source.hex()
        """Which life of the chain this is."""
        self.place: str = place.hex()
        """Of which run directory."""
        self._sequence = max((n for n in map(self._number, range(self._slots))), default=0)
        self._sequence = max(self._sequence, self.last)
        self._open: tuple[int, JournalLine] | None = None

    @classmethod
    def open_for_writing(
        cls, path: Path, payload_bytes: int, memory_bytes: int, stated: int, count: RunCount | None
    ) -> ChangeRing:
        """The updater's: what an earlier one of this chain left stays. payload_bytes: of a
        gradient; stated: as of Epoch; count: of the
        chain, None where it has a ring. Raises OSError where there is no memory."""
        slot = change_slot_bytes(payload_bytes)
        size_bytes = ring_bytes(payload_bytes, memory_bytes)
        slots = (size_bytes - PAGE_BYTES) // slot
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            head = os.pread(descriptor, _FILE.size, 0)
            known = len(head) == _FILE.size and _FILE.unpack(head)[:3] == (_MAGIC, slots, slot)
            if not known:
                os.ftruncate(descriptor, 0)
            os.posix_fallocate(descriptor, 0, size_bytes)
            # Pages are mapped now: a step must not wait for their faults.
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            memory = mmap.mmap(descriptor, size_bytes, flags)
        finally:
            os.close(descriptor)
        if not known:
            source, count = secrets.token_bytes(ID_BYTES), count or RunCount(0, "00" * 16)
            own = source, stated, count.runs, bytes.fromhex(count.place)
            _WORD.pack_into(memory, _INCARNATION_AT, 1)
            memory[8 : _FILE.size] = _FILE.pack(_MAGIC, slots, slot, *own)[8:]
            memory[:8] = _MAGIC
        return cls(memory)

    @classmethod
    def open(cls, path: Path) -> ChangeRing:
        """A reader's. Raises OSError where there is none, RingError where it is not whole yet."""
        descriptor = open_private(path, os.O_RDONLY)
        try:
            if os.fstat(descriptor).st_size < PAGE_BYTES:
                raise RingError(0, NO_CHANGE_RING())
            return cls(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)

    @property
    def epoch(self) -> Epoch:
        """As it is now."""
        return Epoch(self._stated, self._run, self._word(_INCARNATION_AT))

    @property
    def last(self) -> int:
        """The number of the last change that counts; 0: none does."""
        return self._word(_LAST_AT)

    def enter(self, incarnation: int) -> None:
        """Later changes are of this incarnation of the training job."""
        if self._word(_INCARNATION_AT) != incarnation:
            _WORD.pack_into(self._map, _INCARNATION_AT, incarnation)

    def put(self, line: JournalLine, parts: Sequence[np.ndarray]) -> None:
        """Puts a change there, as of now; it counts once `commit` says so. parts: its bytes, one
        behind the other."""
        slot = min(range(self._slots), key=self._number)
        begin, size_bytes = self._begin(slot), sum(part.nbytes for part in parts)
        if size_bytes > self._slot_bytes - PAGE_BYTES - LINE_BYTES or _by_state(line):
            parts, size_bytes = (), NO_PAYLOAD
        text = msgspec.json.encode(line)
        if len(text) > LINE_BYTES:
            short = JournalLine(before=line.before, behind=line.behind, kind=line.kind)
            text, parts, size_bytes = msgspec.json.encode(short), (), NO_PAYLOAD
        self._map[begin : begin + _HEAD.size] = bytes(_HEAD.size)
        _WORD.pack_into(self._map, begin + _COMMITTED_AT, 0)
        payload, at = self._payload(slot), 0
        for part in parts:
            raw = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            payload[at : at + raw.size] = raw
            at += raw.size
        self._map[begin + PAGE_BYTES : begin + PAGE_BYTES + len(text)] = text
        told = self._sequence + 1, len(text), size_bytes, self._word(_INCARNATION_AT)
        self._map[begin : begin + _HEAD.size] = _HEAD.pack(*told, _check(told, text))
        self._sequence += 1
        self._open = slot, line

    def commit(self) -> None:
        """The change that was put last is the replica's."""
        if self._open is None:
            return
        (slot, _), self._open = self._open, None
        _WORD.pack_into(self._map, self._begin(slot) + _COMMITTED_AT, 1)
        _WORD.pack_into(self._map, _LAST_AT, self._sequence)

    def settle(self, newest: StateId) -> None:
        """What an earlier updater left without its commit counts, or never will. newest: the
        replica's state."""
        for change in self.changes():
            if change.committed:
                continue
            begin = self._begin(self._slot_of(change.sequence))
            if change.line.behind == newest:
                _WORD.pack_into(self._map, begin + _COMMITTED_AT, 1)
                _WORD.pack_into(self._map, _LAST_AT, change.sequence)
            else:
                self._map[begin : begin + _HEAD.size] = bytes(_HEAD.size)

    def changes(self) -> list[RingChange]:
        """Those whose slots are whole, oldest first."""
        found = [change for slot in range(self._slots) if (change := self._change(slot))]
        return sorted(found, key=lambda change: change.sequence)

    def is_held(self, change: RingChange) -> bool:
        """Whether nothing took its place while it was read."""
        return any(self._number(slot) == change.sequence for slot in range(self._slots))

    def close(self) -> None:
        """Views handed out keep the memory as long as they live."""
        with suppress(BufferError):
            self._map.close()

    def _change(self, slot: int) -> RingChange | None:
        begin = self._begin(slot)
        *numbers, check = _HEAD.unpack_from(self._map, begin)
        sequence, text_bytes, size_bytes, incarnation = numbers
        if not sequence or text_bytes > LINE_BYTES:
            return None
        text = self._map[begin + PAGE_BYTES : begin + PAGE_BYTES + text_bytes]
        told = sequence, text_bytes, size_bytes, incarnation
        if check != _check(told, text):
            return None
        payload = None
        if size_bytes <= self._slot_bytes - PAGE_BYTES - LINE_BYTES:
            payload = self._payload(slot)[:size_bytes]
        with suppress(*DECODE_ERRORS):
            line = msgspec.json.decode(text, type=JournalLine)
            committed = bool(self._word(begin + _COMMITTED_AT))
            return RingChange(sequence, incarnation, line, committed, payload)
        return None

    def _slot_of(self, sequence: int) -> int:
        return next(slot for slot in range(self._slots) if self._number(slot) == sequence)

    def _number(self, slot: int) -> int:
        return self._word(self._begin(slot))

    def _word(self, at: int) -> int:
        [word] = _WORD.unpack_from(self._map, at)
        return int(word)

    def _begin(self, slot: int) -> int:
        return PAGE_BYTES + slot * self._slot_bytes

    def _payload(self, slot: int) -> np.ndarray:
        begin = self._begin(slot) + PAGE_BYTES + LINE_BYTES
        end = self._begin(slot) + self._slot_bytes
        return np.frombuffer(self._map, np.uint8, end - begin, begin)


def _by_state(line: JournalLine) -> bool:
    """Whether its bytes are a whole state, which the trainer's checkpoint had."""
    return line.kind is ChangeKind.STATE


def _check(told: tuple[int, int, int, int], text: bytes) -> int:
    return xxhash.xxh3_64_intdigest(struct.pack("<QQQQ", *told) + text)
