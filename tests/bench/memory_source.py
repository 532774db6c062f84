"""The capture stage's equal for frames in memory: at a stated rate, whatever the chain does.

A chain that is started within `in_place_of_capture` takes every source for one of these:
`vdev = "net_memory0,stream=FILE,told=FILE,library=FILE,gbps=RATE"`.
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowcheck.stages import stage_table

if TYPE_CHECKING:
    from flowcheck.config import JobConfig
    from flowcheck.messages import Message
    from flowcheck.stages.run_directory.run_dir import RunDir
    from flowcheck.stages.zmq_sockets import StageSockets

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
TOLD_WORDS = 8
FILE_HEADER_BYTES = 24
"""Of a pcap file."""
FEED = """
struct bench_feed {
    const uint8_t *records; uint64_t bytes; double bits_per_ns; uint32_t descriptors, idle_us;
    void *ring, *put, *publish; struct fc_capture_commit *commit; uint64_t *told; uint32_t stop;
};
int bench_feed(struct bench_feed *feed);
"""


def register() -> None:
    """In every process of the chain."""
    factory = "bench.memory_source:MemorySource"
    stage_table.STAGES = tuple(
        replace(row, factory=factory) if row.name == "capture" else row
        for row in stage_table.STAGES
    )


@contextmanager
def in_place_of_capture() -> Iterator[dict[str, str]]:
    """The environment of a chain whose capture stages are these: site.py imports sitecustomize from
    its path. Every user may read the folder, for a chain that root starts runs as another."""
    folder = Path(tempfile.mkdtemp(prefix="flowcheck-bench-"))
    folder.chmod(0o755)
    lines = "from bench import memory_source\nmemory_source.register()\n"
    (folder / "sitecustomize.py").write_text(lines)
    path = [str(folder), str(REPOSITORY), str(REPOSITORY / "tests")]
    try:
        yield {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    finally:
        shutil.rmtree(folder)


def build_library(target: Path) -> None:
    """Compiles memory_source.c."""
    words = ["cc", "-O3", "-std=gnu11", "-shared", "-fPIC", "-I", REPOSITORY / "dpdk_ext/core"]
    subprocess.run([*words, "-o", target, HERE / "memory_source.c"], check=True, timeout=60)


class MemorySource:
    """Brings the frames of a capture file in memory into a ring, once."""

    def __init__(self, run: RunDir, config: JobConfig, number: int) -> None:
        self.name = f"capture-{number}"
        self._run, self._source, self._number = run, config.source[number], number
        self._thread: threading.Thread | None = None
        self._ended = False

    def start(self, links: StageSockets) -> None:
        from cffi import FFI

        from flowcheck._core import ffi, lib
        from flowcheck.plane.frame_sources.dpdk_eal import FRAMES, parse_device
        from flowcheck.plane.shared_memory.frame_ring import FrameRing

        self._links = links
        self._ring = FrameRing.open(self._run.ring(self._number))
        self._ring.map_pages()
        self._head = self._ring.head
        device = parse_device(self._source.vdev or "")
        stream, told, library = (
            Path(device.values(key)[0]) for key in ("stream", "told", "library")
        )
        self._records, self._told = _mapped(stream), _mapped(told, writable=True)
        self._commit = self._ring.capture_commit()
        build = FFI()
        build.cdef("struct fc_capture_commit;" + FEED)
        self._library = build.dlopen(str(library))
        records = build.from_buffer("uint8_t[]", self._records)

        def of_core(thing: Any) -> Any:
            return build.cast("void *", int(ffi.cast("uintptr_t", thing)))

        self._feed = build.new(
            "struct bench_feed *",
            {
                "records": records + FILE_HEADER_BYTES,
                "bytes": len(records) - FILE_HEADER_BYTES,
                "bits_per_ns": float(device.values("gbps")[0]),
                "descriptors": FRAMES,
                "idle_us": self._source.idle_us,
                "ring": of_core(self._ring.handle),
                "put": of_core(ffi.addressof(lib, "fc_ring_put")),
                "publish": of_core(ffi.addressof(lib, "fc_ring_publish")),
                "commit": build.cast("struct fc_capture_commit *", of_core(self._commit)),
                "told": build.from_buffer("uint64_t[]", self._told, require_writable=True),
            },
        )
        self._thread = threading.Thread(target=self._bring, daemon=True)
        self._thread.start()

    def _bring(self) -> None:
        from flowcheck.stages.packet_capture.capture_stage import raise_thread_priority

        raise_thread_priority()
        assert self._library.bench_feed(self._feed) == 0

    def work(self) -> int:
        from flowcheck.messages import FramesReady

        head = self._ring.head
        done, self._head = head - self._head, head
        if done:
            self._links.send(f"parse-{self._number}", FramesReady(ring=self._number, head=head))
        return done

    def on_message(self, message: Message) -> None:
        """Only Stop is sent to a source of frames, and the loop handles it."""

    def drained(self) -> bool:
        """A live source never ends by itself: it is asked to finish."""
        from flowcheck.stages.packet_capture.capture_file import report_source_end

        self._halt()
        if not self._ended:
            report_source_end(self._ring, self._number, self._links)
        self._ended = True
        return True

    def _halt(self) -> None:
        if self._thread is not None:
            self._feed.stop = 1
            self._thread.join()

    def stop(self) -> None:
        self._halt()


def _mapped(path: Path, *, writable: bool = False) -> mmap.mmap:
    """A file in memory, with all its pages at hand."""
    with path.open("r+b" if writable else "rb") as file:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, access)
