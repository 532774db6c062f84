"""What every tensor was at every step, sixteen bytes each: a step gone by can still be audited.

File: a header, then one record per step: step, digests, checksum. A record that a kill tore is cut
off when the file is opened again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import xxhash

from flowcheck.errors import StateError
from flowcheck.replica.kept.digest import DIGEST_BYTES
from flowcheck.whole import growing

MAGIC = b"FCTRACE\n"
VERSION = 2
_HEADER = struct.Struct("<8sII")  # magic, version, tensors
BYTES_MAX = 256 << 20
"""The newer half is kept beyond it: a month of steps would fill the memory its folder lies in."""
_STEP = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<Q")


class Trace:
    """The file of one replica, for its only writer."""

    def __init__(self, path: Path, tensors: int) -> None:
        """Opens or makes it. Raises StateError where the file is of another replica."""
        self._path, self._tensors = path, tensors
        header = _HEADER.pack(MAGIC, VERSION, tensors)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        found = os.pread(self._descriptor, len(header), 0)
        if found and found != header:
            os.close(self._descriptor)
            raise StateError(
                f"{path}: not the trace of a replica of {tensors} tensors, or of another release "
                f"(this one writes version {VERSION}): remove it, or use another run directory"
            )
        os.pwrite(self._descriptor, header, 0)
        size_bytes = os.fstat(self._descriptor).st_size
        record = _record_bytes(tensors)
        self._end = _HEADER.size + (size_bytes - _HEADER.size) // record * record
        os.ftruncate(self._descriptor, self._end)

    def append(self, step: int, digests: Sequence[bytes]) -> None:
        """One record; digests: [tensors], 16 bytes each."""
        if len(digests) != self._tensors:
            raise StateError(f"{self._path}: {len(digests)} digests for {self._tensors} tensors")
        raw = _STEP.pack(step) + b"".join(digests)
        self._end += os.pwrite(
            self._descriptor, raw + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw)), self._end
        )
        if self._end > BYTES_MAX:
            self._drop_older_half()

    def _drop_older_half(self) -> None:
        record = _record_bytes(self._tensors)
        kept_bytes = max(1, (self._end - _HEADER.size) // record // 2) * record
        newest = os.pread(self._descriptor, kept_bytes, self._end - kept_bytes)
        with growing(self._path, durable=False) as place:
            place.write_bytes(_HEADER.pack(MAGIC, VERSION, self._tensors) + newest)
            place.chmod(0o600)
        os.close(self._descriptor)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._end = _HEADER.size + len(newest)

    def close(self) -> None:
        os.close(self._descriptor)


def digests_at(path: Path, step: int) -> list[bytes] | None:
    """The digests of a step, as it was taken last; None where no whole record is of it.

    Raises StateError where the file is none of ours.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(raw) < _HEADER.size or _HEADER.unpack_from(raw)[:2] != (MAGIC, VERSION):
        raise StateError(f"{path}: not a trace this program reads")
    record = _record_bytes(_HEADER.unpack_from(raw)[2])
    for at in reversed(range(_HEADER.size, len(raw) - record + 1, record)):
        body = raw[at : at + record - _CHECKSUM.size]
        (stored,) = _CHECKSUM.unpack_from(raw, at + len(body))
        if _STEP.unpack_from(body) == (step,) and stored == xxhash.xxh3_64_intdigest(body):
            flat = body[_STEP.size :]
            return [flat[i : i + DIGEST_BYTES] for i in range(0, len(flat), DIGEST_BYTES)]
    return None


def _record_bytes(tensors: int) -> int:
    return _STEP.size + tensors * DIGEST_BYTES + _CHECKSUM.size
