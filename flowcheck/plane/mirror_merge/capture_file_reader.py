"""Reads whole capture files in one process: every flow and message, merged over mirror ports.

The same rings, parser and staging as the running chain, in one process, with everything staged.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.extraction.staged_snapshot import staged_snapshot_of
from flowcheck.plane.frame_sources.pcap_source import PcapSource
from flowcheck.plane.mirror_merge.mirror_point_merge import (
    MirrorView,
    merge_mirror_points,
    mirror_view,
)
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.packet_counters import frames_by_verdict
from flowcheck.plane.shared_memory.shared_memory_location import SHM
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.wire.traffic.observed_messages import ObservedFlow, ObservedMessage

RING_SLOTS = 4096
"""Slots. A choice: a file waits while the ring is full, so that a small ring loses nothing."""
POOL_MESSAGES = 1 << 16
"""Messages of the flow table's pool. A choice: more takes memory, in which messages wait for their
reader."""
RECORDS_MAX = 1 << 20
"""Messages that are staged at most, and no more than the file can hold. A choice that bounds
memory."""
HELD_MAX = 1 << 12
"""Packets held whose message is not known yet. A choice that bounds memory: more bridges larger
reordering."""
FRAME_BYTES_MIN = 80
"""No write of RoCE v2 is shorter, its record in a capture file included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureContents:
    """What some capture files hold."""

    frames: dict[str, int]
    """{verdict: frames}, every verdict; they add up to `total`."""
    total: int
    flows: list[ObservedFlow]
    """Every flow, in order of first sight; flows that carry acknowledgements alone too."""
    messages: list[ObservedMessage]
    """Every RDMA write message, in order of first sight; (flow, first_psn) names one."""
    conflicts: int = 0
    """Bytes seen twice with different values; the first one seen is kept."""
    dropped_packets: int = 0
    """Packets with no room to stage them, or whose message never became known."""


@dataclass(slots=True)
class _File:
    """One mirror point."""

    frames: dict[str, int]
    view: MirrorView
    conflicts: int
    dropped: int


def read_capture_files(paths: Sequence[Path], *, icrc_every: int = 1) -> CaptureContents:
    """Reads capture files, several mirror points of one job.

    icrc_every: check the ICRC of every n-th frame, 0 of none. Raises CaptureError for a file
    that is no capture or is torn, RingError where memory is short.
    """
    files = [_read_file(path, icrc_every) for path in paths]
    frames: Counter[str] = Counter()
    for one in files:
        frames.update(one.frames)
    together = merge_mirror_points([one.view for one in files])
    return CaptureContents(
        frames=dict(frames),
        total=sum(frames.values()),
        flows=together.flows,
        messages=together.messages,
        conflicts=together.conflicts + sum(one.conflicts for one in files),
        dropped_packets=together.unmatched_packets + sum(one.dropped for one in files),
    )


@contextmanager
def _scratch(need_bytes: int) -> Iterator[Path]:
    """A folder that is removed afterwards: in memory where at least half stays free."""
    in_memory = SHM.is_dir() and shutil.disk_usage(SHM).free > 2 * need_bytes
    with tempfile.TemporaryDirectory(
        prefix="flowcheck-tape-", dir=SHM if in_memory else None
    ) as folder:
        yield Path(folder)


def _read_file(path: Path, icrc_every: int) -> _File:
    with PcapSource(path) as source:
        file_bytes = path.stat().st_size
        frames_max = file_bytes // FRAME_BYTES_MIN + 64
        data_bytes = 2 * file_bytes + (4 << 20)
        with _scratch(data_bytes + (128 << 20)) as folder:
            staging = Staging.create(
                folder / "staging",
                messages=POOL_MESSAGES,
                data_bytes=data_bytes,
                records=min(RECORDS_MAX, frames_max),
                held=min(HELD_MAX, frames_max),
                sends=1,
                segments=1,
            )
            staging.close_with_last_view()
            with (
                FrameRing.create(folder / "ring", slots=RING_SLOTS) as ring,
                FlowTable.create(folder / "flows", messages=POOL_MESSAGES) as flows,
                Parser(ring, flows, icrc_every=icrc_every) as parser,
                Extractor(ring, flows, staging, block=False) as extractor,
            ):
                commit = ring.capture_commit()
                while not (source.ended and ring.tail == ring.head):
                    source.read_into(ring, RING_SLOTS, commit)
                    parser.parse(RING_SLOTS)
                    extractor.extract(RING_SLOTS)
                source.read_into(ring, 1, commit)  # past the end: raises where the file is torn
                # cffi: a nested struct does not keep the one it lies in alive.
                parsed, extracted = ring.parse_commit(), ring.extract_commit()
                counters = extracted.counters
                return _File(
                    frames=frames_by_verdict(parsed.counters),
                    view=mirror_view(staged_snapshot_of(extractor)),
                    conflicts=int(counters.conflict_bytes),
                    dropped=int(counters.staging_full_packets)
                    + int(counters.orphan_dropped_packets),
                )
