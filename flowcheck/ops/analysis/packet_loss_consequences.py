"""What missing packets of a capture mean for a replica: the steps it could not apply, those that
stay exact, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowcheck.findings.catalog import capture_file_problems as problems
from flowcheck.findings.catalog.collective_evidence import END_OPEN
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES
from flowcheck.wire.learn import Collective, Part, Reading
from flowcheck.wire.learn.trainer.habits import GRADIENTS
from flowcheck.wire.traffic.observed_messages import Range
from flowcheck.wire.training_job.learned_job import FollowedData, LearnedJob

MOST_STEPS = 8
"""Steps that a sentence lists. A choice of layout."""


def loss_findings(reading: Reading) -> list[Finding]:
    """Findings about missing packets; [] if none is missing."""
    packets = sum(flow.seen.psn_missing for flow in reading.flows if flow.role == "data")
    if not packets:
        return []
    jobs = [part for part in reading.parts if _is_followed(part.job)]
    found = [one for part in jobs for one in _of_job(reading, part, packets)]
    known = {part.communicator for part in jobs}
    rest = [c for c in reading.collectives if c.communicator not in known and known_missing(c)]
    if not found and rest:
        told = [f"#{c.index}" for c in rest[:MOST_STEPS]]
        found = [
            problems.LOSS_WITHOUT_JOB(
                packets=packets,
                bytes=sum(map(_missing_bytes, rest)),
                collectives=told + ["..."] * (len(rest) > MOST_STEPS),
            )
        ]
    is_job_read = any(part.job is not None for part in reading.parts)
    unharmed = problems.LOSS_WITHOUT_EFFECT if is_job_read else problems.LOSS_OF_UNREAD
    return found or [unharmed(packets)]


def known_missing(collective: Collective) -> tuple[Range, ...]:
    """Ranges of a collective's result that are certainly missing: without the last range if the
    tensor may end before it."""
    return collective.missing[:-1] if is_end_unknown(collective) else collective.missing


def is_end_unknown(collective: Collective) -> bool:
    """Whether the size of the collective's tensor is known only roughly, so that its last missing
    bytes may not exist."""
    if not collective.missing or not any(one.is_any_of(END_OPEN) for one in collective.assumed):
        return False
    start, stop = collective.missing[-1]
    return stop == collective.bytes and stop - start <= GRAIN_BYTES[collective.protocol]


def _is_followed(job: LearnedJob | None) -> bool:
    return job is not None and job.kind == FollowedData.GRADIENTS


def _of_job(reading: Reading, part: Part, packets: int) -> Iterator[Finding]:
    weights = part.weights
    if weights is not None and weights.missing:
        missing = sum(stop - start for start, stop in weights.missing)
        yield problems.LOSS_IN_START_UP(
            packets=packets, bytes=missing, communicator=part.communicator
        )
        return
    steps = dict(steps_of(reading.collectives, part))
    lost = {
        step: sum(map(_missing_bytes, own))
        for step, own in steps.items()
        if any(map(known_missing, own))
    }
    if not lost:
        return
    first = min(lost)
    exact = _exact_before(first)
    if first == max(steps) and _is_cut_off(reading):
        yield problems.ENDS_INSIDE_STEP(
            packets=packets,
            bytes=lost[first],
            step=first,
            communicator=part.communicator,
            exact=exact,
        )
        return
    named = [str(step) for step in sorted(lost)[:MOST_STEPS]]
    yield problems.LOSS_STOPS_REPLICA(
        packets=packets,
        bytes=sum(lost.values()),
        steps=named + ["..."] * (len(lost) > MOST_STEPS),
        communicator=part.communicator,
        exact=exact,
        first=first,
    )


def _is_cut_off(reading: Reading) -> bool:
    """Whether nothing is missing but what would come behind the last packet of each connection: the
    capture ends there, and no copy is known to be dropped."""
    seen = (flow.seen for flow in reading.flows if flow.role == "data")
    return all(flow.psn_missing == flow.psn_missing_at_end for flow in seen)


def _exact_before(first: int) -> Finding:
    """Which steps a replica follows exactly where step `first` is the first that is lost."""
    if first == 1:
        return problems.NOTHING_EXACT()
    if first == 2:
        return problems.STAYS_EXACT_ONE(1)
    return problems.STAYS_EXACT(first=1, last=first - 1)


def steps_of(
    collectives: Sequence[Collective], part: Part
) -> Iterator[tuple[int, Sequence[Collective]]]:
    """(step number from 1, its gradient all-reduces) for each step of a job in the capture; the
    last step may be incomplete."""
    job = part.job
    assert job is not None, "asked of jobs that are followed"
    sums = [c for c in collectives if c.communicator == part.communicator]
    sums = [c for c in sums if c.meaning in GRADIENTS]
    at, number = 0, 1
    while at < len(sums):
        each = max(1, len(job.first_buckets if number == 1 and job.first else job.buckets))
        yield number, sums[at : at + each]
        at, number = at + each, number + 1


def _missing_bytes(collective: Collective) -> int:
    return sum(stop - start for start, stop in known_missing(collective))
