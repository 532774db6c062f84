"""Where the time of a frame goes: the copy into its slot, its ICRC, parsing and placing, on one
core, each stage over a whole ring so that it finds the bytes out of its caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.extracting import FLOWS, Placing
from bench.huge import huge_memory
from bench.load import Load, frames
from bench.measure import (
    FRAME_BYTES,
    Copies,
    Figure,
    Scale,
    Work,
    address,
    memory,
    rewind,
    together,
)
from flowcheck._core import ffi, lib
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing

FRAMES_MAX = 1 << 15
HUGE_BYTES = 4 << 30
"""Most that the files of one run take."""


def figures(scale: Scale, _: Sequence[Figure]) -> Iterator[Figure]:
    copies = Copies()
    for pages in ("2 MiB", "4 KiB"):
        for pmtu_bytes in FRAME_BYTES:
            for protocol in ("LL", "Simple"):
                load = Load(min(scale.frames(pmtu_bytes), FRAMES_MAX), FLOWS, pmtu_bytes, protocol)
                huge = huge_memory(HUGE_BYTES)
                place: AbstractContextManager[Path | None] = huge if pages == "2 MiB" else memory(0)
                with place as folder:
                    if folder is not None:
                        yield from _of_load(scale, copies, folder, load, pages)


class Stages:
    """The stages of a frame over one ring, each as often as asked."""

    def __init__(self, copies: Copies, folder: Path, load: Load) -> None:
        self.copies, self.folder = copies, folder
        self.source, self.sizes = _flat(load)
        self.count = len(self.sizes)
        self.ring = FrameRing.create(folder / "ring", slots=load.frames)
        self.parser: Parser | None = None
        self.want_icrc(1)
        self.put()
        self.placing = Placing(self.ring, folder, load, self.count)

    def want_icrc(self, every: int) -> None:
        """An empty ring whose parser would check the ICRC of every frame, or of none."""
        rewind(self.ring, "head", "tail")
        self.ring.handle.header.icrc_every = every

    def put(self) -> None:
        ring, commit = self.ring.handle, self.ring.capture_commit()
        functions = [address(ffi.addressof(lib, f"fc_ring_{n}")) for n in ("put", "publish")]
        places = [*functions, address(ring), address(commit), address(self.source)]
        pointers = [self.copies.pointer(a) for a in places]
        sizes = self.copies.pointer(address(self.sizes))
        stride = self.source.shape[1]
        done = self.copies.library.bench_put(*pointers, stride, sizes, self.count)
        assert done == self.count

    def parse_anew(self) -> None:
        """A parser with an empty table."""
        self.drop_parser()
        rewind(self.ring, "parsed")
        table = FlowTable.create(self.folder / "table", messages=2 * self.ring.slots)
        self.parser = Parser(self.ring, table, icrc_every=1)

    def parse(self) -> None:
        assert self.parser is not None
        assert self.parser.parse(self.count) == self.count

    def drop_parser(self) -> None:
        if self.parser is not None:
            self.parser.close()
            self.parser.flows.close()
            self.parser.flows.path.unlink()
            self.parser = None

    def close(self) -> None:
        assert self.ring.counters()["parse"]["write_frames"] == self.count
        self.placing.close()
        self.drop_parser()
        self.ring.close()


def _flat(load: Load) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """The frames as a NIC's buffers have them, one beside the other, and the bytes of each."""
    contents = list(frames(load))
    sizes = np.array([len(content) for content in contents], np.uint32)
    source = np.zeros((len(contents), (int(sizes.max()) + 127) // 128 * 128), np.uint8)
    for row, content in zip(source, contents, strict=True):
        row[: len(content)] = np.frombuffer(content, np.uint8)
    return source, sizes


def _of_load(
    scale: Scale, copies: Copies, folder: Path, load: Load, pages: str
) -> Iterator[Figure]:
    stages = Stages(copies, folder, load)
    works = {
        "copy": Work(stages.put, lambda: stages.want_icrc(0)),
        "copy with ICRC": Work(stages.put, lambda: stages.want_icrc(1)),
        "parse": Work(stages.parse, stages.parse_anew),
        "place": Work(stages.placing.place, stages.placing.again),
    }
    spent = together(scale.repeats, works)
    ns = {name: value / stages.count * 1e9 for name, value in spent.items()}
    stages.close()
    frame = f"{load.protocol}, {FRAME_BYTES[load.pmtu_bytes]} B"
    note = (
        f"copy {ns['copy']:.0f}, ICRC {ns['copy with ICRC'] - ns['copy']:.0f}, "
        f"parse {ns['parse']:.0f}, place {ns['place']:.0f}"
    )
    received = ns["copy with ICRC"] + ns["parse"]
    for what, total in (("received", received), ("and replicated", received + ns["place"])):
        yield Figure(
            f"where, {pages} pages",
            f"{frame}, {what}",
            total,
            "ns a frame",
            note=note,
            ns_per_frame=total,
        )
