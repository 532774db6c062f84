"""A pcap or pcapng file as a source of frames, read by C without DPDK."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowcheck._core import ffi, lib
from flowcheck.closing_context import Closeable
from flowcheck.errors import CaptureError, core_error_text
from flowcheck.findings.catalog.capture_file_problems import (
    CAPTURE_IS_A_FOLDER,
    CAPTURE_REFUSED,
    IS_TORN,
)
from flowcheck.findings.finding import Finding
from flowcheck.plane.frame_sources.capture_file_refusal import open_refusal, other_link_type
from flowcheck.plane.shared_memory.frame_ring import FrameRing


class PcapSource(Closeable):
    """A pcap or pcapng file of Ethernet frames. Raises CaptureError if it is anything else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            raise CaptureError(errno.EISDIR, CAPTURE_IS_A_FOLDER(path))
        slot = ffi.new("struct fc_pcap **")
        code = int(lib.fc_pcap_open(os.fsencode(path), slot))
        if code < 0:
            raise CaptureError(-code, open_refusal(path, -code, core_error_text(-code)))
        self.handle: Any = slot[0]

    @property
    def ended(self) -> bool:
        return bool(lib.fc_pcap_ended(self.handle))

    @property
    def position(self) -> int:
        """Frames delivered since open or rewind."""
        return int(lib.fc_pcap_position(self.handle))

    @property
    def snaplen(self) -> int:
        """Smallest snap length the file states so far; 0 for none."""
        return int(lib.fc_pcap_snaplen(self.handle))

    def rewind(self) -> None:
        lib.fc_pcap_rewind(self.handle)

    def frames(self) -> Iterator[tuple[int, int, int]]:
        """(timestamp_ns, frame_bytes, wire_bytes) of every remaining frame."""
        frame = ffi.new("struct fc_pcap_frame *")
        while self._check(lib.fc_pcap_next(self.handle, frame)):
            yield int(frame.timestamp_ns), int(frame.frame_bytes), int(frame.wire_bytes)

    def count(self) -> int:
        """Frames in the whole file; rewinds. Raises CaptureError where the file is torn."""
        self.rewind()
        frames = sum(1 for _ in self.frames())
        self.rewind()
        return frames

    def skip(self, frames: int) -> None:
        """Passes over `frames` frames: where a restarted capture goes on."""
        frame = ffi.new("struct fc_pcap_frame *")
        for _ in range(frames):
            if not self._check(lib.fc_pcap_next(self.handle, frame)):
                return

    def read_into(self, ring: FrameRing, limit: int, commit: Any) -> int:
        """Moves up to `limit` frames into `ring`, publishes once, counts in `commit`.

        commit: `struct fc_capture_commit *`, from `ring.capture_commit()` at the start.
        Returns frames taken; 0 when the ring is full or the file has `ended`.
        """
        return self._check(lib.fc_pcap_fill(self.handle, ring.handle, limit, commit))

    def _check(self, code: int) -> int:
        """`code`, or CaptureError where the file is torn or is no capture of Ethernet."""
        if code < 0:
            raise CaptureError(-code, self._refusal(-code))
        return code

    def _refusal(self, code: int) -> Finding:
        if (link := int(lib.fc_pcap_foreign_link(self.handle))) >= 0:
            return other_link_type(self.path, link)
        if (what := lib.fc_pcap_torn_why(self.handle)) == ffi.NULL:
            return CAPTURE_REFUSED(path=self.path, error=core_error_text(code))
        return IS_TORN(
            path=self.path,
            byte=int(lib.fc_pcap_offset(self.handle)),
            bytes=self.path.stat().st_size,
            what=ffi.string(what).decode(),
            frames=self.position,
        )

    def close(self) -> None:
        if self.handle:
            lib.fc_pcap_close(self.handle)
            self.handle = None
