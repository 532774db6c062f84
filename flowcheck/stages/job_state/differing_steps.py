"""Steps of which copies turned out to differ behind them, and which steps had been called exact by
then: differing.jsonl, one line each, written by the updater."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from flowcheck.errors import DECODE_ERRORS
from flowcheck.findings.catalog.lost_steps import CALLED_EXACT_BEFORE
from flowcheck.findings.finding import Finding
from flowcheck.replica.taint import TaintedRanges, tainted_elements
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.lifecycle_record_schema import Incarnation
from flowcheck.stages.job_state.steps_of_this_past import is_of_this_past
from flowcheck.stages.run_directory.bounded_log_files import append_line, complete_lines
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

LINES_BYTES = 1 << 20
"""Bytes of the file; beyond them the newer half is kept. A choice: some thousand lines."""
FILES_HELD = 8
"""Files whose lines are held in memory. A choice: a process reads few runs."""
TOLD_MAX = 8
"""Lines that are told of one step. A choice: a single one makes it doubtful."""
STEPS_HELD = 4096
"""Steps whose lines are. A choice: a folder of checkpoints that is served has fewer."""


class DifferingStep(msgspec.Struct, frozen=True, kw_only=True):
    """Elements of a step that were tainted behind it."""

    time_ns: int
    """When they were, since 1970."""
    step: Step
    called_exact_to: Step
    """The last step that had been made; this and those from `step` on were called exact."""
    conflict_bytes: int
    elements: int
    parameters: dict[str, tuple[tuple[int, int], ...]] = {}
    """{parameter: its elements, [start, stop)}, the first ones"""
    incarnation: int = 1


def record_differing_step(run: RunDir, told: DifferingStep) -> None:
    """Adds the line. Raises OSError."""
    append_line(run.differing, msgspec.json.encode(told), LINES_BYTES)


def differing_steps(run: RunDir) -> list[DifferingStep]:
    """Every line, oldest first."""
    stamp = _stamp_of(run)
    return [] if stamp is None else [*_parsed(run.differing, stamp)]


def _stamp_of(run: RunDir) -> tuple[int, int, int] | None:
    """What tells one content of the file from another; None: there is none."""
    try:
        found = run.differing.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=FILES_HELD)
def _parsed(path: Path, stamp: tuple[int, int, int]) -> tuple[DifferingStep, ...]:
    found = []
    for line in complete_lines(path):
        with suppress(*DECODE_ERRORS):  # of another version
            found.append(msgspec.json.decode(line, type=DifferingStep))
    return tuple(found)


@lru_cache(maxsize=STEPS_HELD)
def _covering(path: Path, stamp: tuple[int, int, int], step: Step) -> tuple[DifferingStep, ...]:
    """The lines of which a step was called exact."""
    return tuple(one for one in _parsed(path, stamp) if one.step <= step <= one.called_exact_to)


def saved_while_exact(
    run: RunDir, step: Step, tainted: TaintedRanges | None = None, digest: str | None = None
) -> tuple[Finding, ...]:
    """What is to be said of a checkpoint of this step that names these tainted elements: where they
    lack those of copies that differed, it was saved before that. digest: of its state; None: not
    known, so that every line of the step counts."""
    stamp = _stamp_of(run)
    covering = () if stamp is None else _covering(run.differing, stamp, step)
    lines = [one for one in covering if not _names(tainted or {}, one)]
    if lines and digest is not None:
        life = incarnation_of(run)
        outside = [one for one in lines if _is_outside(one, life, step)]
        if outside and is_of_this_past(run, step, digest):
            lines = [one for one in lines if one not in outside]
    return tuple(
        CALLED_EXACT_BEFORE(
            step=one.step, to=one.called_exact_to, elements=one.elements, bytes=one.conflict_bytes
        )
        for one in lines[:TOLD_MAX]
    )


def _is_outside(one: DifferingStep, life: Incarnation, step: Step) -> bool:
    """Whether the line's step is not in the past of this step of the present incarnation: a file of
    the trainer gave the state of a later one, or the job had gone back before it."""
    given = life.anchored if life.anchored is not None else life.base
    earlier = one.incarnation < life.number
    if given is not None and given <= step and (earlier or one.step <= given):
        return True
    return earlier and life.step is not None and life.step < one.step


def _names(tainted: TaintedRanges, one: DifferingStep) -> bool:
    """Whether all elements that the line tells of are among these, and at least as many as it
    counts."""
    if tainted_elements(tainted) < one.elements or not one.parameters:
        return False
    return all(
        any(of.start <= at < of.stop for of in tainted.get(name, ()))
        for name, ranges in one.parameters.items()
        for start, stop in ranges
        for at in (start, *(of.stop for of in tainted.get(name, ()) if start < of.stop < stop))
    )
