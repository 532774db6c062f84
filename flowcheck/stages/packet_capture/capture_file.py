"""Stage: brings the frames of a capture file into a ring without DPDK."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

from flowcheck.config import JobConfig
from flowcheck.messages import FramesReady, Message, SourceEnded
from flowcheck.plane.frame_sources.pcap_source import PcapSource
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.zmq_sockets import StageSockets

SPAN_FRAMES = 4096
"""Frames per turn: about a millisecond, so that messages are never kept waiting."""


def ring_numbers(config: JobConfig, number: int) -> list[int]:
    """The rings source `number` feeds, by queue."""
    return [ring for ring, (source, _) in enumerate(config.rings) if source == number]


class FileCapture:
    """Reads a capture file without DPDK; waits while the ring is full."""

    def __init__(self, run: RunDir, config: JobConfig, number: int) -> None:
        self.name = f"capture-{number}"
        self._run, self._source = run, config.source[number]
        self._number = ring_numbers(config, number)[0]
        self._ring: FrameRing | None = None
        self._file: PcapSource | None = None

    def start(self, links: StageSockets) -> None:
        self._links = links
        path = Path(self._source.file or "")
        self._ring = FrameRing.open(self._run.ring(self._number))
        self._commit = self._ring.capture_commit()
        self._stamps = capture_times_ns(path) if self._source.speed is not None else None
        self._file = PcapSource(path)
        self._file.skip(self._commit.source_frames)
        self._began_s = time.monotonic()
        self._first = int(self._commit.source_frames)
        self._ended = False

    def work(self) -> int:
        assert self._ring is not None and self._file is not None
        if self._ended:
            return 0
        limit = self._due()
        done = self._file.read_into(self._ring, limit, self._commit) if limit else 0
        if done:
            self._links.send(
                f"parse-{self._number}", FramesReady(ring=self._number, head=self._ring.head)
            )
        if not done and self._nothing_left(self._ring, self._file):
            self._ended = True
            report_source_end(self._ring, self._number, self._links)
        return done

    def _nothing_left(self, ring: FrameRing, file: PcapSource) -> bool:
        """A torn file says so at the read after its last frame, for which there must be room."""
        if int(self._commit.source_frames) == self._source.frames:
            return True
        return file.ended and ring.head - ring.least_tail < ring.slots

    def _due(self) -> int:
        """Frames that may be taken now: by the span, the stated end and the time stamps."""
        taken = int(self._commit.source_frames)
        limit = SPAN_FRAMES
        if self._source.frames is not None:
            limit = min(limit, self._source.frames - taken)
        if self._stamps is not None and self._source.speed and taken < len(self._stamps):
            gone_ns = (time.monotonic() - self._began_s) * 1e9 * self._source.speed
            until = bisect_right(self._stamps, self._stamps[self._first] + gone_ns)
            limit = min(limit, max(0, until - taken))
        return limit

    def on_message(self, message: Message) -> None:
        """Only Stop is sent to a source of frames, and the loop handles it."""

    def drained(self) -> bool:
        return self._ended

    def stop(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._ring is not None:
            self._ring.close()


def report_source_end(ring: FrameRing, number: int, links: StageSockets) -> None:
    """Says in the ring and to the supervisor that nothing more will come."""
    if ring.source_end is None:
        ring.end_source()
    commit = ring.capture_commit()
    links.send(f"parse-{number}", FramesReady(ring=number, head=ring.head))
    links.report(SourceEnded(ring=number, frames=int(commit.source_frames)))


def capture_times_ns(path: Path) -> array[int]:
    """Time stamps of all frames in ns behind the first one's, [frames], never falling. Raises
    CaptureError if torn."""
    with PcapSource(path) as source:
        stamps = array("q", (when for when, _, _ in source.frames()))
    return array("q", accumulate((when - stamps[0] for when in stamps), max))
