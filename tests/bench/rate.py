"""A whole chain at the rate of the wire: start-up, learning and steps of a job that waits for
nobody."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.netib.options import LL128, SIMPLE

import flowcheck
from bench.job_stream import JobStream, job_options, layers, make_stream
from bench.measure import Figure, Scale, memory
from bench.memory_source import TOLD_WORDS, build_library, in_place_of_capture
from flowcheck.errors import FlowCheckError, StateError
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.stages.run_directory.run_dir import RunDir

TARGET_GBPS = 20.0
LOWER_GBPS = (14.0, 10.0, 7.0, 5.0, 3.5, 2.5, 1.5, 1.0)
"""Tried in turn by halves where the target is not held."""
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
LOOK_S, SPENT_EVERY = 0.01, 10
"""Between two looks at the chain's positions; of so many, one asks for processor times too, since
what looks takes its time from the chain."""
READ_LIMIT_S = 120.0
"""Behind the last frame, for readings and steps."""
START_LIMIT_S = 120.0
STILL_S = 6.0
"""After which nothing more is expected."""
STOP_LIMIT_S = 300.0
STAGING_BYTES_MAX = 3 << 30
REST_S, REST_SHARE, REST_SLACK_S = 0.5, 0.2, 0.05
"""A chain that spent less than this share of a core, and a few ticks, for so long has started."""
CHAIN = {"capture-0", "parse-0", "extract", "update"}
DROPS = ("ring_full_frames", "nic_missed_frames")
JOB = """run = "{folder}/run"
checkpoint = "{folder}/out"
[[source]]
vdev = "net_memory0,stream={stream},told={folder}/told,library={folder}/source.so,gbps={gbps}"
[staging]
size_bytes = {staging}
[optimizer]
name = "adamw"
learning_rate = {rate}
weight_decay = {decay}
[services]
user = "root"
"""


@dataclass(frozen=True)
class Size:
    """A model, and how long its job is."""

    width: int
    blocks: int
    iterations: int

    @property
    def megabytes(self) -> int:
        return round(12 * self.width**2 * self.blocks * 4 / 1e6 / 10) * 10


SMALL = Size(width=512, blocks=4, iterations=12)
LARGE = Size(width=1024, blocks=10, iterations=4)


@dataclass
class Outcome:
    """What came of one run of a chain."""

    gbps: float = 0.0
    """As it was fed."""
    frames: int = 0
    dropped: int = 0
    waited: int = 0
    """Most frames in the source's descriptors at once."""
    learned_at: float | None = None
    """Iterations that the source had brought when the job was learned, with a part of one."""
    learned_s: float = 0.0
    """Since the first frame."""
    staged_bytes: int = 0
    """Most at once."""
    steps: int = 0
    equal: bool = False
    """The parameters of its last step are torch's, bit for bit."""
    why: str = ""
    behind_s: float = 0.0
    """From the last frame until the last step was applied."""
    cpu_s: dict[str, float] = field(default_factory=dict)
    """{stage, and "readings" for the processes that read what is staged: seconds}."""

    def holds(self, stream: JobStream) -> bool:
        """Nothing was lost."""
        return self.equal and self.steps == stream.iterations and not self.dropped


def figures(scale: Scale, _: Sequence[Figure]) -> Iterator[Figure]:
    for size in (SMALL,) if scale.quick else (SMALL, LARGE):
        for protocol in (LL128, SIMPLE):
            yield from _of_job(size, protocol, search=not scale.quick)


def _of_job(size: Size, protocol: str, *, search: bool) -> Iterator[Figure]:
    """search: for the highest rate that loses nothing, where the target is not held."""
    stage = f"rate, {size.megabytes} MB, {protocol}"
    with memory(0) as folder:
        need = 16 * size.megabytes * 10**6 + (size.iterations + 1) * 3.3e6 * size.megabytes
        if need > available_bytes():
            note = f"needs {need / 1e9:.0f} GB of memory"
            yield Figure(stage, "a job from its start-up on", 0, "absent", note=note)
            return
        options = job_options(layers(size.width, size.blocks), protocol)
        stream = make_stream(options, folder / "job.pcap", size.iterations)
        build_library(folder / "source.so")
        outcome = run_chain(folder, stream, TARGET_GBPS)
        yield from _told(stage, stream, outcome)
        if search and not outcome.holds(stream):
            best = _highest(folder, stream)
            note = "" if best else f"not even {min(LOWER_GBPS)} Gb/s"
            yield Figure(stage, "highest rate without a loss", best, "Gb/s", note=note)


def _highest(folder: Path, stream: JobStream) -> float:
    """The highest of LOWER_GBPS that loses nothing, found by halves; 0: none."""
    low, high = 0, len(LOWER_GBPS)  # the first rate that holds lies in [low, high]
    while low < high:
        middle = (low + high) // 2
        if run_chain(folder, stream, LOWER_GBPS[middle]).holds(stream):
            high = middle
        else:
            low = middle + 1
    return LOWER_GBPS[high] if high < len(LOWER_GBPS) else 0.0


def _told(stage: str, stream: JobStream, came: Outcome) -> Iterator[Figure]:
    each, wanted = stream.iteration_bytes, stream.iterations
    note = f"{came.frames} frames, {wanted} iterations; {came.waited} waited at once at most"
    yield Figure(stage, "fed", came.gbps, "Gb/s", target=0.97 * TARGET_GBPS, note=note)
    note = "no room in the ring, or before it"
    yield Figure(stage, "frames dropped", came.dropped, "frames", note=note)
    learned = -1.0 if came.learned_at is None else came.learned_at
    note = f"{came.learned_s:.2f} s behind the first frame"
    yield Figure(stage, "source's iteration when the job was learned", learned, "", note=note)
    note = f"{came.staged_bytes / each:.2f} iterations; start-up has {stream.ends[0] / 1e6:.0f} MB"
    yield Figure(stage, "most bytes staged", came.staged_bytes / 1e6, "MB", note=note)
    yield Figure(stage, "steps lost", wanted - came.steps, "steps", note=came.why[:100])
    note = "parameters are torch's" if came.equal else "parameters are NOT torch's"
    note = note if came.steps else "no parameters to compare"
    note += f"; {came.behind_s:.2f} s behind the last frame"
    yield Figure(stage, "last step applied", came.steps, "steps", target=wanted, note=note)
    spent = {name: took for name, took in came.cpu_s.items() if name != "supervisor"}
    note = ", ".join(f"{name} {took:.2f}" for name, took in spent.items())
    yield Figure(stage, "processor time, start included", sum(spent.values()), "s", note=note)


def expected(stream: JobStream, steps: int) -> list[NDArray[np.float32]]:
    """The parameters behind so many steps, by torch's own optimizer."""
    import torch

    sizes = [prod(shape) for shape in stream.options.shapes]
    cuts = np.cumsum(sizes)[:-1]
    own = [
        torch.nn.Parameter(torch.from_numpy(part.copy()).reshape(shape))
        for part, shape in zip(np.split(stream.weights(), cuts), stream.options.shapes, strict=True)
    ]
    optimizer = torch.optim.AdamW(own, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for _, gradient in zip(range(steps), stream.gradients(), strict=False):
        for parameter, part in zip(own, np.split(gradient, cuts), strict=True):
            parameter.grad = torch.from_numpy(part).reshape(parameter.shape)
        optimizer.step()
    return [parameter.detach().numpy() for parameter in own]


def run_chain(folder: Path, stream: JobStream, gbps: float) -> Outcome:
    """Feeds the stream once to a chain of its own."""
    run = RunDir(folder / "run")
    text = JOB.format(
        folder=folder,
        stream=stream.path,
        gbps=gbps,
        staging=min(stream.bytes, STAGING_BYTES_MAX),
        rate=LEARNING_RATE,
        decay=WEIGHT_DECAY,
    )
    (folder / "job.toml").write_text(text)
    (folder / "told").write_bytes(bytes(8 * TOLD_WORDS))
    with in_place_of_capture() as environment, (folder / "told").open("r+b") as file:
        told = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint64)
        words = [sys.executable, "-m", "flowcheck", "up", folder / "job.toml", "--json"]
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        try:
            came = _watch(process, run, told)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=STOP_LIMIT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
    _conclude(came, run, stream, told, out, err)
    shutil.rmtree(folder / "out", ignore_errors=True)
    return came


def _watch(process: subprocess.Popen[str], run: RunDir, told: NDArray[np.uint64]) -> Outcome:
    """Until everything was fed and nothing changes any more."""
    came, moved_s = Outcome(), time.monotonic() + START_LIMIT_S
    rest, rests = _Rest(), False
    last_s, at, looks = moved_s, (0, 0, 0), 0
    with ExitStack() as opened:
        chain: tuple[FrameRing, Staging] | None = None
        while process.poll() is None and (now_s := time.monotonic()) < moved_s + STILL_S:
            time.sleep(LOOK_S)
            if now_s > last_s + READ_LIMIT_S:
                break
            if chain is None:
                with suppress(FlowCheckError, OSError):
                    ring = opened.enter_context(FrameRing.open(run.ring(0)))
                    chain = ring, opened.enter_context(Staging.open(run.staging(0)))
                continue
            held = int(chain[1].handle.header.data_in_use)
            came.staged_bytes = max(came.staged_bytes, held)
            counters = chain[0].capture_commit().counters
            came.dropped = sum(int(getattr(counters, name)) for name in DROPS)
            place = (chain[0].tail, held, _steps_size(run))
            if not told[3]:
                last_s = now_s
            looks += 1
            if looks % SPENT_EVERY == 0:
                came.cpu_s |= _cpu_s(run)
                rests = rest.reached(now_s, came.cpu_s)
            # A step of a large model takes seconds, in which the chain works and nothing shows.
            if place != at or not told[3] or run.unread.exists() or not rests:
                at, moved_s = place, now_s
            if not told[5] and rests:
                told[5] = 1  # training begins on a chain that is up
                moved_s = now_s
    return came


class _Rest:
    """Whether all stages have started, and have nothing more to do."""

    def __init__(self) -> None:
        self._since_s, self._spent_s = 0.0, -1.0

    def reached(self, now_s: float, spent_s: dict[str, float]) -> bool:
        """spent_s: processor time of each stage by now."""
        total_s = sum(spent_s.values())
        allowed_s = REST_SLACK_S + REST_SHARE * (now_s - self._since_s)
        busy = total_s > self._spent_s + allowed_s
        if busy or not spent_s.keys() >= CHAIN:
            self._since_s, self._spent_s = now_s, total_s
        return now_s > self._since_s + REST_S


def _cpu_s(run: RunDir) -> dict[str, float]:
    """Processor time of each stage so far, and of the processes that it started."""
    found = {}
    for stage, pid in run.stage_pids().items():
        with suppress(OSError):
            own, children = _spent_s(pid)
            found[stage] = own
            if stage == "extract":
                running = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                found["readings"] = children + sum(_spent_s(int(child))[0] for child in running)
    return found


def _spent_s(pid: int) -> tuple[float, float]:
    """Processor time of a process, and of its children that ended (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, child_user, child_system = (int(ticks) for ticks in fields[11:15])
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return (user + system) / ticks_per_s, (child_user + child_system) / ticks_per_s


def _steps_size(run: RunDir) -> int:
    return run.steps.stat().st_size if run.steps.exists() else 0


def _conclude(
    came: Outcome, run: RunDir, stream: JobStream, told: NDArray[np.uint64], out: str, err: str
) -> None:
    """Adds what the chain said at its end, and compares its parameters."""
    first_ns, last_ns = int(told[1]), int(told[2])
    came.frames, came.waited = int(told[0]), int(told[4])
    if last_ns <= first_ns:
        came.why = (err.strip().splitlines() or ["the source was not started"])[-1]
        return
    came.gbps = 8.0 * (stream.bytes - 16 * came.frames) / (last_ns - first_ns)
    if run.learned_job.exists():
        at_ns = run.learned_job.stat().st_mtime_ns
        came.learned_at = stream.iteration_at((at_ns - first_ns) / (last_ns - first_ns))
        came.learned_s = (at_ns - first_ns) / 1e9
    if run.steps.exists():
        took = [json.loads(line)["time_ns"] for line in run.steps.read_text().splitlines()]
        came.behind_s = max(0.0, (took[-1] - last_ns) / 1e9) if took else 0.0
    try:
        said = json.loads(out)
    except ValueError:
        came.why = (err.strip().splitlines() or ["no result"])[-1]
        return
    came.steps, came.why = int(said["steps"]), _sentence(said["why"])
    if said["checkpoint"] is not None:
        try:
            model = flowcheck.load(said["checkpoint"])["model"]
        except StateError as error:  # elements of lost frames: nothing to compare
            came.why = came.why or f"{error.finding}"
            return
        parts = zip(model.values(), expected(stream, came.steps), strict=True)
        came.equal = all(np.array_equal(np.asarray(a).ravel(), b.ravel()) for a, b in parts)


def _sentence(why: Any) -> str:
    return "" if why is None else str(why["sentence"])


def available_bytes() -> int:
    """Of memory, by /proc/meminfo."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = next(line for line in lines if line.startswith("MemAvailable:"))
    return int(found.split()[1]) << 10
