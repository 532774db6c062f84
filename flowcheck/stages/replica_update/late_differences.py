"""Copies that turn out to differ behind their step: the elements they are of are tainted since that
step.

A step that was called exact meanwhile, and saved, cannot be written anew: a line in
differing.jsonl tells which steps that were (job_state/differing_steps.py).
"""

from __future__ import annotations

import time

from flowcheck.findings.catalog.lost_steps import APPLIED_IN_DOUBT, TAINTED_LATE
from flowcheck.findings.finding import Finding
from flowcheck.messages import StepDoubtful
from flowcheck.replica.element_ranges import (
    Ranges,
    count_elements,
    difference,
    intersection,
)
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.taint import Loss, missing_elements, taint_of_losses
from flowcheck.stages.job_state.assumptions import add_assumption
from flowcheck.stages.job_state.differing_steps import (
    DifferingStep,
    differing_steps,
    record_differing_step,
)
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.replica_update.gradient_sources.gradient_source import LateDifferences
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

RANGES_TOLD = 100
"""Ranges of elements that an event names. A choice that bounds its line; the taint has all."""


def taint_late(
    run: RunDir, replica: Replica, records: StepLog, step: Step, late: LateDifferences
) -> StepDoubtful | None:
    """Taints what differs of a step, from that step on. Returns what is to be told; None: the step
    is still to be made, or what differs was tainted before: nothing was called exact. Runs again
    after a kill before it is settled, and tells it again then."""
    elements = missing_elements(replica.layout, late.ranges)
    at = replica.step
    if at < step:
        replica.taint_since(step, elements)
        return None
    told = record_late(run, replica, records, step, late, at)
    replica.taint_since(step, elements)
    if told is None:
        return None
    records.write_newest_again(replica)  # it tells what is tainted
    return StepDoubtful(
        step=step,
        conflict_bytes=late.conflict_bytes,
        elements=told.elements,
        called_exact_to=at,
        parameters=told.parameters,
    )


def record_late(
    run: RunDir, replica: Replica, records: StepLog, step: Step, late: LateDifferences, to: Step
) -> DifferingStep | None:
    """Writes down which steps were called exact in what differs. to: the last one. None: all of it
    was tainted at the step already."""
    number = incarnation_of(run).number
    for one in differing_steps(run):  # a kill left it there
        if (one.step, one.called_exact_to, one.conflict_bytes, one.incarnation) == (
            step,
            to,
            late.conflict_bytes,
            number,
        ):
            return one
    elements = missing_elements(replica.layout, late.ranges)
    known = intersection(replica.tainted_at(step), replica.tainted_ranges)
    elements = difference(elements, known)
    if not len(elements):
        return None
    told = DifferingStep(
        time_ns=time.time_ns(),
        step=step,
        called_exact_to=to,
        conflict_bytes=late.conflict_bytes,
        elements=count_elements(elements),
        parameters=named_elements(replica.layout, elements),
        incarnation=number,
    )
    records.unwritten.attempt(lambda: record_differing_step(run, told), lines=0)
    return told


def named_elements(layout: Layout, elements: Ranges) -> dict[str, tuple[tuple[int, int], ...]]:
    """{parameter: its elements, [start, stop)} of elements counted over all; the first of them."""
    own = taint_of_losses([Loss.of(1, elements[:RANGES_TOLD])], 1, layout)
    return {name: tuple((one.start, one.stop) for one in parts) for name, parts in own.items()}


def in_doubt(run: RunDir, step: Step, late: LateDifferences) -> StepDoubtful:
    """Of a step whose gradient is logged, or whose number nobody knows yet: what differs cannot be
    told apart any more."""
    add_assumption(run, APPLIED_IN_DOUBT(step=step, bytes=late.conflict_bytes))
    return StepDoubtful(step=step, conflict_bytes=late.conflict_bytes)


def late_finding(message: StepDoubtful) -> Finding:
    """What the operator is told."""
    told = {"step": message.step, "bytes": message.conflict_bytes}
    if message.called_exact_to is None:
        return APPLIED_IN_DOUBT(**told)
    return TAINTED_LATE(elements=message.elements, to=message.called_exact_to, **told)
