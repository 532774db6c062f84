"""A log of every tensor's digest at every step (16 bytes each), so that past steps can still be
audited.

File: a header, then one record per step: step, digests, checksum. A record that a kill tore is cut
off when the file is opened again. If the disk was full, a step has no record, not even that of an
earlier time when it was applied: its digests are unknown.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from flowcheck.atomic_write import atomic_path, write_all_at
from flowcheck.errors import StateError, is_disk_full
from flowcheck.findings.catalog.replica_state_errors import (
    DIGEST_COUNT,
    NOT_A_DIGEST_LOG,
    OTHER_DIGEST_LOG,
)
from flowcheck.private_files import open_private
from flowcheck.replica.state_digest import DIGEST_BYTES
from flowcheck.step_numbers import Step

MAGIC = b"FCTRACE\n"
VERSION = 2
_HEADER = struct.Struct("<8sII")  # magic, version, tensors
BYTES_MAX = 256 << 20
"""Bytes; beyond them the newer half is kept. A choice: a month of steps would fill the memory its
folder lies in."""
_STEP = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<Q")
_NO_STEP = _STEP.pack(2**64 - 1)


class DigestLog:
    """The file of one replica, for its only writer."""

    def __init__(self, path: Path, tensors: int) -> None:
        """Opens or makes it. Raises StateError where the file is of another replica."""
        self._path, self._tensors = path, tensors
        self._newest: int | None = None
        """Of the steps there are records of; None: nobody has asked yet."""
        header = _HEADER.pack(MAGIC, VERSION, tensors)
        self._descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        found = os.pread(self._descriptor, len(header), 0)
        if found and found != header:
            os.close(self._descriptor)
            raise StateError(OTHER_DIGEST_LOG(path=path, tensors=tensors, version=VERSION))
        size_bytes = os.fstat(self._descriptor).st_size
        record = _record_bytes(tensors)
        whole = max(0, size_bytes - _HEADER.size) // record * record
        self._end = _HEADER.size + whole if found else 0
        os.ftruncate(self._descriptor, self._end)

    def append(self, step: Step, digests: Sequence[bytes]) -> None:
        """One record; digests: [tensors], 16 bytes each. Raises OSError where it finds no room, and
        none of the step is left."""
        if len(digests) != self._tensors:
            counts = {"digests": len(digests), "tensors": self._tensors}
            raise StateError(DIGEST_COUNT(path=self._path, **counts))
        raw = _STEP.pack(step) + b"".join(digests)
        raw += _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))
        if not self._end:
            raw = _HEADER.pack(MAGIC, VERSION, self._tensors) + raw
        try:
            write_all_at(self._descriptor, raw, self._end)
        except OSError:
            self._forget(step)
            raise
        self._end += len(raw)
        if self._newest is not None:
            self._newest = max(self._newest, step)
        if self._end > BYTES_MAX:
            try:
                self._drop_older_half()
            except OSError as error:
                if not is_disk_full(error):
                    raise

    def _forget(self, step: Step) -> None:
        """An earlier record of the step is of another past: `digests_at` would take it for the last
        one. Written over in place, which takes no room; where even that does (a file system that
        copies what is written), it is cut off with all behind it."""
        record = _record_bytes(self._tensors)
        places = range(_HEADER.size, self._end, record)
        if self._newest is None:
            self._newest = max((self._step_at(at) for at in places), default=0)
        if step > self._newest:
            return
        for at in places:
            if self._step_at(at) != step:
                continue
            try:
                os.pwrite(self._descriptor, _NO_STEP, at)
            except OSError:
                os.ftruncate(self._descriptor, at)
                self._end = at
                return

    def _step_at(self, at: int) -> int:
        step: Step = _STEP.unpack(os.pread(self._descriptor, _STEP.size, at))[0]
        return 0 if step == 2**64 - 1 else step

    def _drop_older_half(self) -> None:
        record = _record_bytes(self._tensors)
        kept_bytes = max(1, (self._end - _HEADER.size) // record // 2) * record
        newest = os.pread(self._descriptor, kept_bytes, self._end - kept_bytes)
        with atomic_path(self._path, durable=False) as place:
            place.write_bytes(_HEADER.pack(MAGIC, VERSION, self._tensors) + newest)
        os.close(self._descriptor)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._end = _HEADER.size + len(newest)

    def close(self) -> None:
        os.close(self._descriptor)


def digests_at(path: Path, step: Step) -> list[bytes] | None:
    """The digests of a step, as it was taken last; None where no whole record is of it.

    Raises StateError where the file is none of ours.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    if not raw:
        return None  # not even its beginning found room
    if len(raw) < _HEADER.size or _HEADER.unpack_from(raw)[:2] != (MAGIC, VERSION):
        raise StateError(NOT_A_DIGEST_LOG(path))
    record = _record_bytes(_HEADER.unpack_from(raw)[2])
    for at in reversed(range(_HEADER.size, len(raw) - record + 1, record)):
        body = raw[at : at + record - _CHECKSUM.size]
        (stored,) = _CHECKSUM.unpack_from(raw, at + len(body))
        if _STEP.unpack_from(body) == (step,) and stored == xxhash.xxh3_64_intdigest(body):
            flat = body[_STEP.size :]
            return [flat[i : i + DIGEST_BYTES] for i in range(0, len(flat), DIGEST_BYTES)]
    return None


def last_step_with(path: Path, number: int, digest: bytes) -> Step | None:
    """The last recorded step at which a tensor had this digest; None: none, or there is no log.
    number: the tensor's place among the digests of a step."""
    raw = path.read_bytes() if path.exists() else b""
    if len(raw) < _HEADER.size or _HEADER.unpack_from(raw)[:2] != (MAGIC, VERSION):
        return None
    tensors = _HEADER.unpack_from(raw)[2]
    record = _record_bytes(tensors)
    count = (len(raw) - _HEADER.size) // record
    if number >= tensors or not count:
        return None
    table = np.frombuffer(raw, np.uint8, count * record, _HEADER.size).reshape(count, record)
    begin = _STEP.size + number * DIGEST_BYTES
    same = table[:, begin : begin + DIGEST_BYTES] == np.frombuffer(digest, np.uint8)
    for at in reversed(np.flatnonzero(same.all(axis=1)).tolist()):
        body = table[at].tobytes()
        (stored,) = _CHECKSUM.unpack_from(body, record - _CHECKSUM.size)
        (step,) = _STEP.unpack_from(body)
        if stored == xxhash.xxh3_64_intdigest(body[: -_CHECKSUM.size]):
            return Step(step)
    return None


def _record_bytes(tensors: int) -> int:
    return _STEP.size + tensors * DIGEST_BYTES + _CHECKSUM.size
