"""Both values of bytes of which copies differ, for the operator: a file beside the run's events.

differing-STEP.json has one entry a range: parameter, elements, bucket, the bytes of both copies as
hex, and where the later copy came from. What the first copy came from is not recorded anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from flowcheck.atomic_write import write_atomically
from flowcheck.findings.catalog.lost_steps import BYTES_DIFFER, COPIES_DIFFER
from flowcheck.messages import CopiesDiffer
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.differing_copies import (
    Differences,
    DifferingRange,
    differences,
)
from flowcheck.plane.shared_memory.gradient_double_buffer import (
    GenerationState,
    GradientShard,
)
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration, Step
from flowcheck.wire.training_job.learned_job import LearnedJob

RANGES_MAX = 2000
"""Most ranges of one file. A choice: with the values, which the shard bounds to 256 KiB, a file has
at most about a MiB."""
REPORT_EVERY_S = 5.0
"""Least time between two files of a step, which are written whole, unless twice as many bytes
differ: a damaged mirror that lags brings more at each look. A choice: longer tells later."""
PSNS = 1 << 24
"""Packet sequence numbers, which wrap (InfiniBand Architecture Specification 1.4, 9.2)."""
FILES_KEPT = 8
"""Files of the newest steps that a run keeps. A choice that bounds what it takes on disk."""


class DifferingElements(msgspec.Struct, frozen=True, kw_only=True):
    """One range of a file; what is None is not known."""

    start_byte: int
    stop_byte: int
    """Of the flat gradient, registration order; of step 0 of the initial weights, each parameter in
    index order."""
    parameter: str | None
    """The first one that the range touches."""
    start: int = 0
    stop: int = 0
    """Elements of that parameter, in memory order."""
    bucket: int | None = None
    """Number of DDP's bucket that holds the parameter."""
    first: str = ""
    later: str = ""
    """Hex of the first bytes of the range: of the copy that arrived first, which is in the
    gradient, and of the later one. "": the later copy was not kept."""
    ring: int | None = None
    flow: str | None = None
    psn: int | None = None
    """Where the later copy came from: number of the source in the job file, connection, packet
    sequence number as the packet has it, 0 to 2**24 - 1."""


class DifferingReport(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    step: Step
    iteration: Iteration
    conflict_bytes: int
    ranges: int
    """That were found, in all."""
    both_kept: int
    """Those of which both values are here."""
    all_placed: bool
    """Whether these are all bytes that differ."""
    elements: tuple[DifferingElements, ...]
    format: int = 1


class DifferingReporter:
    """Writes the files of one job and tells of them, each time more is found."""

    def __init__(
        self,
        run: RunDir,
        job: LearnedJob,
        extractors: Sequence[Extractor],
        names: Sequence[str] | None,
    ) -> None:
        """names: of the job's parameters, where they are known."""
        self._run, self._job, self._extractors = run, job, extractors
        reduced = job.reduced
        self._stops = np.cumsum([p.nbytes for p in reduced])
        self._names = parameter_names(job, names, len(reduced))
        self._told: dict[int, tuple[int, int, float]] = {}
        """{generation: its opening, how many bytes differed, and when that was told}"""

    def news(
        self, shard: GradientShard, generation: int, step: Step, *, last: bool
    ) -> CopiesDiffer | None:
        """Writes the file of a generation that is handed on or lost. Returns what is to be told;
        None: nothing more differs than was told, or it is told later. last: nobody asks again."""
        opening, count = shard.open_count(generation), shard.conflict_bytes(generation)
        over = shard.generation_state(generation) not in (
            GenerationState.EMPTY,
            GenerationState.OPEN,
        )
        if not count or not over:
            return None
        before, now_s = self._told.get(generation), time.monotonic()
        if before is not None and before[0] == opening:
            soon = now_s - before[2] < REPORT_EVERY_S and count < 2 * before[1]
            if count == before[1] or (soon and not last):
                return None
        self._told[generation] = opening, count, now_s
        found = differences(shard, generation)
        return told(self._run, self._report(found, step, shard.iteration(generation), count))

    def _report(
        self, found: Differences, step: Step, iteration: Iteration, count: int
    ) -> DifferingReport:
        elements = tuple(self._elements(one) for one in found.ranges[:RANGES_MAX])
        return DifferingReport(
            step=step,
            iteration=iteration,
            conflict_bytes=count,
            ranges=len(found.ranges),
            both_kept=sum(bool(one.later) for one in elements),
            all_placed=found.placed,
            elements=elements,
        )

    def _elements(self, one: DifferingRange) -> DifferingElements:
        number = int(np.searchsorted(self._stops, one.start, "right"))
        own: dict[str, object] = {}
        if number < len(self._names):
            parameter = self._job.reduced[number]
            base, size = int(self._stops[number]) - parameter.nbytes, parameter.element_bytes
            last = min(one.stop - base, parameter.nbytes)
            own = {"start": (one.start - base) // size, "stop": -(-last // size)}
            own["bucket"] = bucket_of(self._job, number)
        return DifferingElements(
            start_byte=one.start,
            stop_byte=one.stop,
            parameter=self._names[number] if own else None,
            first=one.first.hex(),
            later=one.later.hex(),
            ring=one.ring,
            flow=self._flow(one),
            psn=None if one.psn is None else one.psn % PSNS,
            **own,  # type: ignore[arg-type]
        )

    def _flow(self, one: DifferingRange) -> str | None:
        if one.ring is None or one.flow is None or one.ring >= len(self._extractors):
            return None
        keys = self._extractors[one.ring].own_keys()
        if one.flow >= len(keys):
            return None
        key = keys[one.flow]
        return f"{key.source} to {key.destination}, QP {key.dest_qp}"


def parameter_names(job: LearnedJob, names: Sequence[str] | None, count: int) -> list[str]:
    """[count] `names`, where they are those of the job's parameters, else numbers."""
    named = names if names is not None and len(names) == len(job.parameters) else ()
    return [named[n] if n < len(named) else f"param.{n}" for n in range(count)]


def bucket_of(job: LearnedJob, parameter: int) -> int | None:
    """Number of DDP's bucket that holds it; None: none does."""
    buckets = enumerate(job.buckets)
    return next((number for number, bucket in buckets if parameter in bucket), None)


def written(run: RunDir, report: DifferingReport) -> str:
    """The file's path; "": it could not be written. Those of older steps make room."""
    path = run.differing_copies(report.step)
    try:
        write_atomically(path, msgspec.json.encode(report), durable=False)
    except OSError:
        return ""
    for old in sorted(path.parent.glob("differing-*.json"), key=_step_of)[:-FILES_KEPT]:
        with suppress(OSError):
            old.unlink()
    return str(path)


def told(run: RunDir, report: DifferingReport) -> CopiesDiffer:
    """Writes the file and returns what is to be told."""
    path = written(run, report)
    why = COPIES_DIFFER(report.conflict_bytes)
    if report.elements:
        first = report.elements[0]
        why = BYTES_DIFFER(
            bytes=report.conflict_bytes,
            parameter=first.parameter,
            start=first.start,
            stop=first.stop,
            kept=report.both_kept,
            ranges=report.ranges,
            file=path or "no file: it could not be written",
        )
    count = report.conflict_bytes
    return CopiesDiffer(step=report.step, conflict_bytes=count, path=path, why=why)


def _step_of(path: Path) -> int:
    number = path.stem.removeprefix("differing-")
    return int(number) if number.isdecimal() else 0
