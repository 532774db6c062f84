"""Copies that turn out to differ behind their step: the elements they are of are tainted since that
step.

A step that was called exact meanwhile, and saved, cannot be written anew: a line in
differing.jsonl tells which steps that were (job_state/differing_steps.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from flowcheck.findings.catalog.lost_steps import APPLIED_IN_DOUBT, TAINTED_LATE
from flowcheck.findings.finding import Finding
from flowcheck.messages import StepDoubtful
from flowcheck.replica.element_ranges import count_elements
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.taint import Loss, missing_elements, taint_of_losses
from flowcheck.stages.job_state.assumptions import add_assumption
from flowcheck.stages.job_state.differing_steps import DifferingStep, record_differing_step
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.replica_update.gradient_sources.gradient_source import LateDifferences
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.wire.traffic.observed_messages import Range

RANGES_TOLD = 100
"""Ranges of elements that an event names. A choice that bounds its line; the taint has all."""


def taint_late(
    run: RunDir, replica: Replica, records: StepLog, step: Step, late: LateDifferences
) -> StepDoubtful | None:
    """Taints what differs of a step, from that step on. Returns what is to be told; None: the step
    is still to be made, and nothing was called exact. Runs again after a kill before it is settled,
    and tells it again then."""
    elements = missing_elements(replica.layout, late.ranges)
    at = replica.step
    if at < step:
        replica.taint_since(step, elements)
        return None
    told = record_late(run, replica, records, step, late, at)
    replica.taint_since(step, elements)
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
) -> DifferingStep:
    """Writes down which steps were called exact in what differs. to: the last one."""
    told = DifferingStep(
        time_ns=time.time_ns(),
        step=step,
        called_exact_to=to,
        conflict_bytes=late.conflict_bytes,
        elements=count_elements(missing_elements(replica.layout, late.ranges)),
        parameters=named_elements(replica.layout, late.ranges),
        incarnation=incarnation_of(run).number,
    )
    records.unwritten.attempt(lambda: record_differing_step(run, told), lines=0)
    return told


def named_elements(
    layout: Layout, ranges: Sequence[Range]
) -> dict[str, tuple[tuple[int, int], ...]]:
    """{parameter: elements, [start, stop)} that byte ranges of a gradient touch; the first of
    them."""
    elements = missing_elements(layout, ranges)[:RANGES_TOLD]
    if not len(elements):
        return {}
    own = taint_of_losses([Loss.of(1, elements)], 1, layout)
    return {name: tuple((one.start, one.stop) for one in parts) for name, parts in own.items()}


def in_doubt(run: RunDir, step: Step, late: LateDifferences) -> StepDoubtful:
    """Of a step whose gradient is logged, or whose number nobody knows yet: what differs cannot be
    told apart any more."""
    add_assumption(run, APPLIED_IN_DOUBT(step=step, bytes=late.conflict_bytes))
    return StepDoubtful(step=step, conflict_bytes=late.conflict_bytes)


def doubt_finding(message: StepDoubtful) -> Finding:
    """What the operator is told."""
    told = {"step": message.step, "bytes": message.conflict_bytes}
    if message.called_exact_to is None:
        return APPLIED_IN_DOUBT(**told)
    return TAINTED_LATE(elements=message.elements, to=message.called_exact_to, **told)
