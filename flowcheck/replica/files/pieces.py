"""A file as the pieces it is made of, most of them a tensor's own memory: nothing is copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowcheck._core import ffi
from flowcheck.replica.files.sha256 import Buffer, Crc


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a file; not to change before they are written and summed."""

    raw: Buffer
    label: str = ""
    """The tensor whose bytes they are, all of them; empty where they are none's."""
    late: Callable[[], bytes] | None = None
    """What stands there in place of `raw`, as many bytes; to be asked when all before it is
    written."""
    crc: Crc | None = None
    """Made while it is written, for what comes late."""

    @property
    def nbytes(self) -> int:
        return memoryview(self.raw).nbytes

    @property
    def address(self) -> tuple[int, int]:
        """(first byte's, bytes)."""
        view = ffi.from_buffer("uint8_t[]", self.raw)
        return int(ffi.cast("uintptr_t", view)), len(view)
