"""What every stage's bench needs: figures, medians, working sets out of cache, bare copies."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cffi import FFI

from flowcheck._core import ffi, lib
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.shared_memory_location import SHM, choose_memory_folder

HERE = Path(__file__).resolve().parent
FRAME_BYTES = {1024: 1102, 4096: 4174}
"""{path MTU: frame of a Middle packet over IPv6, without FCS}"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    stage: str
    what: str
    value: float
    unit: str
    ratio: float | None = None
    against: str = ""
    target: float | None = None
    """Least value where `ratio` is None, else least ratio."""
    note: str = ""
    ns_per_frame: float = 0.0
    """Where the chain's bound needs it."""

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        reached = self.value if self.ratio is None else self.ratio
        return "ok" if reached >= self.target else "below"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much work a run does."""

    quick: bool
    repeats: int
    bytes: int
    """Working set of a memory-bound stage."""

    def frames(self, pmtu_bytes: int) -> int:
        """Frames whose slots hold about `bytes`: a power of two, as rings want."""
        wanted = self.bytes // FRAME_BYTES[pmtu_bytes]
        return 1 << (wanted.bit_length() - 1)


def last_level_cache_bytes() -> int:
    """Of the first CPU, by sysfs; 32 MiB where it does not tell."""
    sizes = [32 << 20]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]])
    return max(sizes[1:] or sizes)


def scale(quick: bool) -> Scale:
    """At least eight last-level caches, at most an eighth of free memory; quick: 96 MiB."""
    if quick:
        return Scale(True, 3, 96 << 20)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Scale(False, 5, min(max(8 * last_level_cache_bytes(), 512 << 20), free // 8))


@dataclass(frozen=True, slots=True)
class Work:
    """Something to time; `before` is not timed."""

    run: Callable[[], object]
    before: Callable[[], object] = int


def together(repeats: int, works: dict[str, Work]) -> dict[str, float]:
    """Median seconds of each work, all taken in turn so that a busy machine troubles all alike.

    Counted is the calling thread's CPU time: what others take of the core is not the stage's. One
    round before is not counted.
    """
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats + 1):
        for name, work in works.items():
            work.before()
            start = time.thread_time()
            work.run()
            taken[name].append(time.thread_time() - start)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def wall_seconds(work: Callable[[], object], repeats: int) -> float:
    """Median wall time of work that has threads or processes of its own, after one run before."""
    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def by_turns(
    repeats: int,
    works: Sequence[Callable[[], object]],
    before: Sequence[Callable[[], object]],
) -> list[list[float]]:
    """Wall times of works that have threads of their own: [work][repeat], after two runs of each;
    `before` each, not timed, and each once nothing of the one before it runs. Neighbours in time
    are what a busy machine troubles alike."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(repeats + 2):
        for times, work, prepare in zip(taken, works, before, strict=True):
            prepare()
            settle()
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
    return [times[2:] for times in taken]


def settle(limit_s: float = 1.0) -> None:
    """Until the other threads of this process sleep. torch's stay awake for milliseconds behind a
    parallel loop, waiting for the next one (libgomp's GOMP_SPINCOUNT): on as many CPUs as there are
    threads whoever is timed next would share one with them."""
    me, until = str(threading.get_native_id()), time.monotonic() + limit_s
    while time.monotonic() < until:
        time.sleep(1e-3)
        if not any(_runs(task) for task in Path("/proc/self/task").iterdir() if task.name != me):
            return


def _runs(task: Path) -> bool:
    """Whether a thread has or wants a CPU; its name may hold anything but ends with a bracket."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:  # it ended
        return False


@contextmanager
def memory(need_bytes: int) -> Iterator[Path]:
    """A folder for shared files, removed afterwards; /dev/shm for 0, where files can be written."""
    folder = choose_memory_folder(need_bytes).folder if need_bytes else SHM
    with tempfile.TemporaryDirectory(prefix="flowcheck-bench-", dir=folder) as name:
        yield Path(name)


def rewind(ring: FrameRing, *positions: str) -> None:
    """Sets positions back to 0, as if the stages behind them had not run; of several readers that
    of the first."""
    header = ring.handle.header
    places = (("head", "capture", header), ("parsed", "parse", header))
    for position, commits, place in (*places, ("tail", "extract", header.readers_of[0])):
        if position in positions:
            setattr(place, position, 0)
            copies = getattr(place, commits)
            ffi.memmove(copies, bytes(ffi.sizeof(copies)), ffi.sizeof(copies))


def loops() -> Any:
    """The compiled loops.c."""
    build = FFI()
    build.cdef(
        "void bench_copy(void *, void *, uint64_t, uint64_t, void *, uint64_t, uint64_t, uint64_t,"
        " uint64_t);"
        "void bench_encode(void *, int, int, int, void *, void *, void *, uint64_t);"
        "uint64_t bench_put(void *, void *, void *, void *, void *, uint64_t, void *, uint64_t);"
    )
    with tempfile.TemporaryDirectory(prefix="flowcheck-bench-") as scratch:
        target = Path(scratch) / "loops.so"
        command = ["cc", "-O3", "-std=gnu11", "-shared", "-fPIC", "-o", target, HERE / "loops.c"]
        subprocess.run(command, check=True, timeout=60)
        library = build.dlopen(str(target))
    return build, library


def address(thing: Any) -> int:
    """Of a C object or function of _core, or of an array's memory."""
    if isinstance(thing, np.ndarray):
        return int(thing.ctypes.data)
    return int(ffi.cast("uintptr_t", thing))


class Copies:
    """Bare copies of the same bytes: libc's memcpy and the non-temporal one."""

    def __init__(self) -> None:
        self.build, self.library = loops()
        libc = self.build.dlopen(None)
        self.build.cdef("void *memcpy(void *, const void *, size_t);")
        self.functions = {
            "memcpy": int(self.build.cast("uintptr_t", self.build.addressof(libc, "memcpy"))),
            "stream": address(ffi.addressof(lib, "fc_copy_stream")),
        }

    def pointer(self, value: int) -> Any:
        return self.build.cast("void *", value)

    def copy(
        self,
        name: str,
        to: tuple[int, int, int],
        source: tuple[int, int, int],
        size: int,
        items: int,
    ) -> None:
        """`items` copies of `size` bytes; to, source: (address, stride, items per 2 MiB page)."""
        self.library.bench_copy(
            self.pointer(self.functions[name]),
            self.pointer(to[0]),
            to[1],
            to[2],
            self.pointer(source[0]),
            source[1],
            source[2],
            size,
            items,
        )
        lib.fc_copy_fence()


def frames_of(ring: FrameRing, offset: int = 0) -> tuple[int, int, int]:
    """(address, stride, per page) of byte `offset` of every frame."""
    handle = ring.handle
    return address(handle.frames) + offset, int(handle.frame_room), int(handle.frames_per_page)
