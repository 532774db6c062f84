"""The shared-memory ring of captured frames: create, open, positions, counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowcheck._core import ffi, lib
from flowcheck.closing_context import Closeable
from flowcheck.errors import RingError, check
from flowcheck.plane.shared_memory.packet_counters import counter_values
from flowcheck.plane.shared_memory.shared_file_errors import check_shared_memory

UNENDED = 2**64 - 1
"""source_end while the source goes on (fc_ring.h)."""


class FrameRing(Closeable):
    """One ring, mapped. `handle` is the `struct fc_ring *` C functions take."""

    def __init__(self, path: Path, handle: Any) -> None:
        self.path = path
        self.handle = handle

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        slots: int,
        slot_bytes: int = 4352,
        live_source: bool = False,
        readers: int = 1,
    ) -> FrameRing:
        """A new ring file, reserved in full; readers: extractors that each take every frame.

        Raises RingError if it is there or memory is short.
        """
        handle = ffi.new("struct fc_ring *")
        code = lib.fc_ring_create(str(path).encode(), slots, slot_bytes, live_source, handle)
        check_shared_memory(code, "create ring", path, new=True)
        code = lib.fc_ring_set_readers(handle, readers)
        check_shared_memory(code, "create ring", path, new=True)
        return cls(path, handle)

    @classmethod
    def open(cls, path: Path, *, reader: int = 0) -> FrameRing:
        """An existing ring; reader: whose tail and counters are meant.

        Raises RingError on another magic, layout version or size, and without that reader.
        """
        handle = ffi.new("struct fc_ring *")
        code = lib.fc_ring_open(str(path).encode(), handle)
        check_shared_memory(code, "open ring", path, new=False)
        ring = cls(path, handle)
        try:
            code = lib.fc_ring_read_as(handle, reader)
            check(code, path.name, RingError)
        except RingError:
            ring.close()
            raise
        return ring

    @property
    def slots(self) -> int:
        return int(self.handle.mask) + 1

    @property
    def huge_pages(self) -> bool:
        return bool(self.handle.header.huge_pages)

    @property
    def live_source(self) -> bool:
        return bool(self.handle.header.live_source)

    @property
    def head(self) -> int:
        return int(lib.fc_ring_head(self.handle))

    @property
    def parsed(self) -> int:
        return int(lib.fc_ring_parsed(self.handle))

    @property
    def tail(self) -> int:
        return int(lib.fc_ring_tail(self.handle))

    @property
    def least_tail(self) -> int:
        """Of the reader that is furthest behind: what lies before it is free."""
        return int(lib.fc_ring_least_tail(self.handle))

    @property
    def readers(self) -> int:
        return int(self.handle.header.readers)

    @property
    def source_end(self) -> int | None:
        """The last head, once the source has ended."""
        end = int(lib.fc_ring_source_end(self.handle))
        return None if end == UNENDED else end

    @property
    def drained(self) -> bool:
        """The source has ended and every frame of it was extracted."""
        return self.source_end is not None and self.tail == self.source_end

    def capture_commit(self) -> Any:
        """`struct fc_capture_commit *`: counters, and frames taken from the source."""
        out = ffi.new("struct fc_capture_commit *")
        lib.fc_ring_capture_counters(self.handle, out)
        return out

    def parse_commit(self) -> Any:
        """`struct fc_parse_commit *` that belongs to `parsed`."""
        out = ffi.new("struct fc_parse_commit *")
        lib.fc_ring_parse_counters(self.handle, out)
        return out

    def extract_commit(self) -> Any:
        """`struct fc_extract_commit *` that belongs to `tail`."""
        out = ffi.new("struct fc_extract_commit *")
        lib.fc_ring_extract_counters(self.handle, out)
        return out

    def counters(self) -> dict[str, dict[str, int]]:
        """{stage: {counter: value}} for all three stages."""
        # A struct inside another does not keep it alive: the commits need names.
        capture, parse, extract = self.capture_commit(), self.parse_commit(), self.extract_commit()
        return {
            "capture": counter_values(capture.counters),
            "parse": counter_values(parse.counters),
            "extract": counter_values(extract.counters),
        }

    def map_pages(self) -> None:
        """Has every slot's page at hand, for a process that writes to slots: a fault for each page
        costs more than the frame's copy. A kernel that cannot leaves it to the faults."""
        lib.fc_populate(self.handle.map.base, self.handle.map.bytes)

    def release(self, position: int) -> None:
        """Frees the slots below `position`, for a reader that has no extractor."""
        lib.fc_ring_release(self.handle, position)

    def end_source(self) -> None:
        """Capture's word that nothing more will come."""
        lib.fc_ring_end_source(self.handle)

    def close(self) -> None:
        lib.fc_ring_close(self.handle)
