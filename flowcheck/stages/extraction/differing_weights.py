"""Both values of initial weights of which two copies differ: differing-0.json, as of any step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from flowcheck.messages import CopiesDiffer
from flowcheck.stages.extraction.differing_report import (
    RANGES_MAX,
    DifferingElements,
    DifferingReport,
    bucket_of,
    parameter_names,
    told,
)
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration, Step
from flowcheck.wire.learn.reading import DifferingBytes
from flowcheck.wire.training_job.learned_job import LearnedJob, Parameter

BEGIN = Step(0)


def tell_differing_weights(
    run: RunDir, job: LearnedJob, differing: Sequence[DifferingBytes], names: Sequence[str] | None
) -> CopiesDiffer | None:
    """Writes the file. Returns what is to be told; None: nothing is. names: of the parameters,
    where they are known."""
    elements = tuple(_elements(job, differing, parameter_names(job, names, len(job.parameters))))
    if not elements:
        return None
    lacking = np.zeros(sum(p.nbytes for p in job.parameters), np.bool_)
    for start, stop in job.weights_missing:
        lacking[start:stop] = True
    for one in elements:
        lacking[one.start_byte : one.stop_byte] = False
    report = DifferingReport(
        step=BEGIN,
        iteration=Iteration(0),
        conflict_bytes=sum(one.stop_byte - one.start_byte for one in elements),
        ranges=len(elements),
        both_kept=len(elements),
        all_placed=not lacking.any(),
        elements=elements[:RANGES_MAX],
    )
    return told(run, report)


def _elements(
    job: LearnedJob, differing: Sequence[DifferingBytes], names: Sequence[str]
) -> Iterator[DifferingElements]:
    stops = np.cumsum([p.nbytes for p in job.parameters])
    for one in differing:
        begin, end = one.start, one.start + len(one.first)
        for number in range(int(np.searchsorted(stops, begin, "right")), len(names)):
            parameter = job.parameters[number]
            base, size = int(stops[number]) - parameter.nbytes, parameter.element_bytes
            if base >= end:
                break
            first = -(-(max(begin, base) - base) // size)
            last = (min(end, base + parameter.nbytes) - base) // size
            cut = slice(base + first * size - begin, base + last * size - begin)
            values = [_by_element(copy[cut], size) for copy in (one.first, one.later)]
            for start, stop in _runs(parameter, first, (values[0] != values[1]).any(axis=1)):
                own = slice(start - first, stop - first)
                at, at_stop = _in_memory(parameter, start, stop)
                yield DifferingElements(
                    start_byte=base + start * size,
                    stop_byte=base + stop * size,
                    parameter=names[number],
                    start=at,
                    stop=at_stop,
                    bucket=bucket_of(job, number),
                    first=values[0][own].tobytes().hex(),
                    later=values[1][own].tobytes().hex(),
                )


def _by_element(values: bytes, size: int) -> NDArray[np.uint8]:
    return np.frombuffer(values, np.uint8).reshape(-1, size)


def _runs(parameter: Parameter, first: int, unlike: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """[start, stop) of elements that are unlike, in index order, which lie beside each other in
    memory too. first: number of the first of `unlike`."""
    if _is_in_index_order(parameter):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], unlike, [False]]))) + first
        yield from ((a, b) for a, b in edges.reshape(-1, 2).tolist())
    else:
        yield from ((n, n + 1) for n in (np.flatnonzero(unlike) + first).tolist())


def _is_in_index_order(parameter: Parameter) -> bool:
    own = np.cumprod([1, *reversed(parameter.sizes[1:])])[::-1].tolist() if parameter.sizes else []
    used = zip(parameter.sizes, parameter.strides, own, strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in used)


def _in_memory(parameter: Parameter, start: int, stop: int) -> tuple[int, int]:
    """Where elements that lie beside each other are in memory."""
    if not parameter.sizes:
        return start, stop
    index = np.unravel_index(start, parameter.sizes)
    at = int(np.dot([int(n) for n in index], parameter.strides))
    return at, at + stop - start
