"""What a reading of what is staged comes to: a job and what must be kept with it, or why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flowcheck.plane.merge import Joined
from flowcheck.stages.following.apart import Named
from flowcheck.stages.learning.proof import consistent
from flowcheck.stages.learning.wanted import Wanted, flows_of, of_wanted
from flowcheck.wire.job import Job
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.jobs.late.amid import Expected
from flowcheck.wire.lives import lives
from flowcheck.wire.parted import Parted
from flowcheck.wire.quiet import up_to_quiet
from flowcheck.wire.seen import FlowKey, FlowSeen
from flowcheck.wire.stated import Stated
from flowcheck.wire.terms import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a job whose start may not be seen."""

    job: Job | None = None
    """It was followed before."""
    model: Expected | None = None
    """Else its model, as the job file states it."""

    def __bool__(self) -> bool:
        return self.job is not None or self.model is not None


UNKNOWN = Known()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one reading came to: a job and what must be kept with it, or why there is none."""

    job: Job | None = None
    weights: NDArray[np.uint8] | None = field(default=None, repr=False)
    beside_weights: NDArray[np.uint8] | None = field(default=None, repr=False)
    """As of `Weights.beside`."""
    numbers: dict[Named, int] = field(default_factory=dict, repr=False)
    why_not: tuple[str, ...] = ()
    others: tuple[FlowKey, ...] = ()
    """As of `Reading`."""
    flows: tuple[FlowKey, ...] = ()
    """Of the job, both directions of each of its connections."""
    beside: int = 0
    """Other data-parallel jobs that were read."""
    joining: bool = False
    """A job that is known runs, and cannot be joined yet."""
    broke: str = ""
    """The traceback of a reading that raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a stream is to be read, as `read_stream` takes it."""

    ended: bool = False
    quiet: bool = False
    """Nothing came for a while."""
    hasty: bool = False
    release: Rule | None = None
    before: Job | None = None
    stated: Stated | None = None
    known: Known = UNKNOWN
    """Of a job that may be joined amid its run."""
    blocks: tuple[int, ...] = ()
    parted: Parted | None = None
    wanted: Wanted | None = None
    """Which of several jobs; None: the one that began first."""


def read(seen: Joined, flows: Sequence[FlowSeen], terms: Terms) -> Reading:
    """The first life of a job that proves one: a later one is no part of it."""
    *over, (flows, messages) = lives(flows, seen.messages)
    for earlier in over:
        reading = read_stream(
            *earlier,
            release=terms.release,
            before=terms.before,
            earlier=terms.before,
            stated=terms.stated,
            blocks=terms.blocks,
            parted=terms.parted,
        )
        reading = of_wanted(reading, terms.wanted)
        if reading.job is not None and (reading.gathered or reading.weights) is not None:
            return reading
    if not terms.quiet:
        messages = up_to_quiet(messages)
    reading = read_stream(
        flows,
        messages,
        ended=terms.ended,
        release=terms.release,
        before=terms.before if terms.quiet else None,
        earlier=terms.before,
        blocks=terms.blocks,
        parted=terms.parted,
        hasty=terms.hasty,
        stated=terms.stated,
    )
    return of_wanted(reading, terms.wanted)


def outcome_of(reading: Reading) -> Outcome:
    """What a stage needs of a reading. A job without its initial weights starts no replica."""
    if reading.job is None:
        return Outcome(why_not=reading.why_not, others=reading.others)
    weights = reading.gathered or reading.weights
    if weights is None or not weights.complete or weights.why_not:
        told = weights.why_not if weights is not None else ""
        unseen = "the initial weights were not seen whole, so no replica can start"
        return Outcome(why_not=(told or unseen,), others=reading.others)
    if not consistent(reading.job):
        return Outcome(why_not=("the collectives read so far are not those of the bucket plan",))
    # Of connections of several queue pairs the flows' own counts alone tell, from their start on.
    dealt = {
        flow
        for edge in reading.job.edges
        for turns in edge.queue_pairs
        for flow in turns
        if len(turns) > 1
    }
    numbers = {
        (placement.flow, placement.first_psn): placement.number
        for collective in reading.collectives
        for placement in collective.placements
        if placement.first_psn is not None and placement.flow not in dealt
    }
    others = [part for part in reading.parts if part.job not in (None, reading.job)]
    return Outcome(
        job=reading.job,
        weights=weights.result,
        beside_weights=weights.beside,
        numbers=numbers,
        flows=tuple(flows_of(reading.job, reading.flows)),
        beside=len(others),
    )
