"""Which of several jobs on the same ports one extractor follows, and what the others may not take.

Where the job file says nothing that tells them apart they are taken by turns: an extractor reads
only what no one before it has claimed, and only once all of these have claimed theirs. Where it
does, each takes the job that fits what is stated for it, and for none of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from flowcheck.config import JobConfig, OwnConfig
from flowcheck.plane.extractor import Extractor, place_staged
from flowcheck.plane.flows import flow_key
from flowcheck.plane.owners import Name
from flowcheck.plane.plans import PLAN_UNKNOWN
from flowcheck.stages.jobs import count
from flowcheck.stages.learning.fitting import fits, misfit, same
from flowcheck.stages.learning.past import Past, past_of, was_at
from flowcheck.stages.rundir import RunDir
from flowcheck.whole import write_whole
from flowcheck.wire.job import Job
from flowcheck.wire.learn import FlowReading, Part, Reading
from flowcheck.wire.seen import FlowKey

NOT_BACK = "a job that appeared began with nothing that the replica ever held"
ANOTHERS = "a job that appeared began with what the replica of another one held"
SEVERAL_FIT = "a job fits what is stated for several of the jobs: state hosts that only one uses"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One of several jobs, by what is stated for it and for the others."""

    own: OwnConfig
    others: tuple[OwnConfig, ...] = ()
    back: RunDir | None = None
    """It is a later life of the job that is followed here."""
    pasts: tuple[Past, ...] = ()
    """Of the others that were learned."""

    def unlike(self, job: Job) -> str:
        """What is stated and says that it is not this one; empty: nothing."""
        if other := misfit(self.own, job):
            return other
        return SEVERAL_FIT if any(fits(other, job) for other in self.others) else ""

    def why_not(self, part: Part) -> str:
        """Empty: it is this one."""
        job, weights = part.job, part.weights
        assert job is not None and weights is not None
        if why := self.unlike(job):
            return why
        if self.back is not None and not was_at(self.back, job, weights.result):
            return NOT_BACK
        later = [p.run for p in self.pasts if self.back or p.last_ns < part.first_ns]
        return ANOTHERS if any(was_at(run, job, weights.result) for run in later) else ""


def wanted_of(config: JobConfig, reader: int) -> Wanted | None:
    """reader: of the rings, from 0. None where but one job is followed, whichever it is."""
    if not config.several:
        return Wanted(OwnConfig(hosts=config.hosts)) if config.hosts else None
    own = OwnConfig(hosts=config.hosts, model=config.model if config.job else None)
    alike = [each for n, each in enumerate(config.job) if n != reader and not same(own, each)]
    return Wanted(own, tuple(alike))


def of_wanted(reading: Reading, wanted: Wanted | None) -> Reading:
    """The reading with the job that is wanted for its job."""
    if wanted is None:
        return reading
    found: list[str] = []
    for part in reading.parts:
        if part.job is None or part.weights is None or not part.weights.complete:
            continue
        why = wanted.why_not(part)
        if not why:
            return replace(
                reading, job=part.job, weights=part.weights, why_not=part.why_not, gathered=None
            )
        found.append(why)
    if reading.gathered is not None and reading.job is not None:
        # Whose units these are is not told.
        why = NOT_BACK if wanted.back is not None else misfit(wanted.own, reading.job)
        return replace(reading, job=None, why_not=(why,)) if why else reading
    why_not = tuple(dict.fromkeys(found)) or reading.why_not
    return replace(reading, job=None, weights=None, gathered=None, why_not=why_not)


def flows_of(job: Job, readings: Sequence[FlowReading]) -> Iterator[FlowKey]:
    """Both directions of every connection of a job."""
    peers = {reading.seen.key: reading.peer for reading in readings}
    for edge in job.edges:
        for key in edge.every_flow:
            yield key
            peer = peers.get(key)
            if peer is not None:
                yield peer


class Claims:
    """Which flows are whose, in files beside what each extractor learned."""

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        self._run, self._config = run, config
        self._taken: set[int] = set()
        """Jobs before this one whose flows are not read here any more."""

    @property
    def _before(self) -> list[RunDir]:
        """Jobs that have their turn before this one."""
        reader, config = self._run.reader, self._config
        own = OwnConfig(hosts=config.hosts, model=config.model if config.job else None)
        first = list(range(1, reader + 1))
        if config.job:
            first = [n for n in first if same(own, config.job[n - 1])]
        return [self._run.port.beside(number) for number in first]

    def turn(self, extractors: Sequence[Extractor]) -> bool:
        """Whether all that have their turn before have claimed theirs: nothing of that is read."""
        for number, run in enumerate(self._before):
            if number in self._taken:
                continue
            rings = claimed(run)
            if rings is None and run.unfound.exists():
                rings = [[] for _ in extractors]
            if rings is None:
                return False
            for extractor, flows in zip(extractors, rings, strict=True):
                states = extractor.staging.plans()["state"]
                for index in flows:
                    if states[index] == PLAN_UNKNOWN:
                        extractor.ignore(index)
            self._taken.add(number)
            place_staged(extractors, {})  # what is staged of them has no home
        return True

    def others(self, extractors: Sequence[Extractor]) -> tuple[Past, ...]:
        """The jobs beside this one that were learned."""
        reader, port = self._run.reader, self._run.port
        numbers = (n for n in range(count(self._config)) if n != reader)
        beside = [port.beside(number + 1) for number in numbers]
        known = [(run, rings) for run in beside if (rings := claimed(run)) is not None]
        return tuple(past_of(run, rings, extractors) for run, rings in known)

    def given_up(self) -> bool:
        """None of those before holds back frames any more for a job it may still learn."""
        left = [run for n, run in enumerate(self._before) if n not in self._taken]
        return all(run.unlearned.exists() for run in left)

    def make(
        self,
        extractors: Sequence[Extractor],
        names: Sequence[Mapping[FlowKey, Name]],
        flows: Sequence[FlowKey],
    ) -> None:
        """These flows are this job's. names: [ring] what its flows are called among `flows`."""
        own = set(flows)
        rings = [
            [
                index
                for index, record in enumerate(extractor.flows.flows())
                if (name := called.get(flow_key(record))) is not None and name.flow in own
            ]
            for extractor, called in zip(extractors, names, strict=True)
        ]
        write_whole(self._run.claimed, msgspec.json.encode(rings))


def claimed(run: RunDir) -> list[list[int]] | None:
    """[ring] indices of the flows that a job has; None before it is learned."""
    if not run.learned_job.exists():
        return None  # written before that, but not for good
    with suppress(FileNotFoundError):
        return msgspec.json.decode(run.claimed.read_bytes(), type=list[list[int]])
    return None
