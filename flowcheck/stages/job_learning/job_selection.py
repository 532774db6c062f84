"""Which of several jobs on the same ports this extractor follows, and which flows the others
claim.

A later life of a job begins with weights that the job's replica held. Of several jobs on the same
ports nothing else tells which one comes back.

Where the job file says nothing that tells them apart they are taken by turns: an extractor reads
only what no one before it has claimed, and only once all of these have claimed theirs. Where it
does, each takes the job that fits what is stated for it, and for none of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.atomic_write import write_atomically
from flowcheck.config import JobConfig, JobTableConfig
from flowcheck.errors import RingError, StateError
from flowcheck.findings.catalog.job_selection_reasons import (
    SEVERAL_JOBS_FIT,
    WEIGHTS_NEVER_HELD,
    WEIGHTS_OF_ANOTHER,
)
from flowcheck.findings.finding import Finding
from flowcheck.plane.extraction.flow_plan_install import PLAN_UNKNOWN
from flowcheck.plane.extraction.payload_extractor import Extractor, place_staged
from flowcheck.plane.extraction.psn_alignment import JoinedFlow
from flowcheck.plane.shared_memory.flow_table import flow_key
from flowcheck.replica.state_digest import tensor_digests
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.job_learning.job_file_match import fits_stated_job, misfit, stated_alike
from flowcheck.stages.job_state.model_layout import layout_of
from flowcheck.stages.run_directory.job_run_dirs import job_count
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.learn import FlowReading, Part, Reading
from flowcheck.wire.learn.reading import Weights
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.learned_job import LearnedJob


@dataclass(frozen=True, slots=True)
class EarlierJob:
    """A job that is followed, or was."""

    run: RunDir
    last_ns: int
    """When its connections were used last."""


def earlier_job_of(
    run: RunDir, flows: Sequence[Sequence[int]], extractors: Sequence[Extractor]
) -> EarlierJob:
    """flows: [ring] indices of the job's."""
    used = [
        int(extractor.flows.flows()["last_ns"][list(own)].max(initial=0))
        for extractor, own in zip(extractors, flows, strict=True)
    ]
    return EarlierJob(run, max(used, default=0))


def replica_had_weights(run: RunDir, job: LearnedJob, weights: NDArray[np.uint8]) -> bool:
    """Whether the run's replica had these parameters, at the beginning or after any step."""
    with suppress(StateError, RingError, OSError):
        layout = layout_of(job, run.settings())
        if not run.replica.exists() or peek_versions(run.replica)[0] != layout:
            return False
        if weights.tobytes() == run.weights.read_bytes():
            return True
        flat = layout.memory_order(weights.view(layout.numpy_dtype))
        own = b"".join(tensor_digests(flat[p.start : p.stop] for p in layout.parameters))
        return run.trace.read_bytes().find(own) >= 0
    return False


@dataclass(frozen=True, slots=True)
class JobSelector:
    """One of several jobs, by what is stated for it and for the others."""

    own: JobTableConfig
    others: tuple[JobTableConfig, ...] = ()
    back: RunDir | None = None
    """It is a later life of the job that is followed here."""
    earlier_jobs: tuple[EarlierJob, ...] = ()
    """Of the others that were learned."""

    def can_tell(self, weights: Weights) -> bool:
        """Whether they are seen far enough to tell whose they are: whole, where a replica may have
        had them."""
        whole = self.back is not None or self.earlier_jobs
        return weights.sound if whole else weights.certain_where_seen

    def why_another_job(self, job: LearnedJob) -> Finding | None:
        """What is stated and says that it is not this one; None: nothing."""
        if unlike := misfit(self.own, job):
            return unlike
        several = any(fits_stated_job(other, job) for other in self.others)
        return SEVERAL_JOBS_FIT() if several else None

    def may_be(self, part: Part) -> bool:
        """Whether enough is seen of it to ask: its weights, or that nobody sends them, where its
        addresses tell whose it is."""
        if part.job is None:
            return False
        if part.weights is None:
            return part.job.start_unknown and bool(self.own.hosts)
        return self.can_tell(part.weights)

    def why_not(self, part: Part) -> Finding | None:
        """None: it is this one."""
        job, weights = part.job, part.weights
        assert job is not None
        if (why := self.why_another_job(job)) or weights is None:
            return why
        if self.back is not None and not replica_had_weights(self.back, job, weights.data):
            return WEIGHTS_NEVER_HELD()
        later = [p.run for p in self.earlier_jobs if self.back or p.last_ns < part.first_ns]
        another = any(replica_had_weights(run, job, weights.data) for run in later)
        return WEIGHTS_OF_ANOTHER() if another else None


def job_selector_of(config: JobConfig, reader: int) -> JobSelector | None:
    """reader: of the rings, from 0. None where but one job is followed, whichever it is."""
    if not config.several:
        return JobSelector(JobTableConfig(hosts=config.hosts)) if config.hosts else None
    own = JobTableConfig(hosts=config.hosts, model=config.model if config.job else None)
    alike = [
        each for n, each in enumerate(config.job) if n != reader and not stated_alike(own, each)
    ]
    return JobSelector(own, tuple(alike))


def select_job(reading: Reading, wanted: JobSelector | None) -> Reading:
    """The reading with the job that is wanted for its job."""
    if wanted is None:
        return reading
    found: list[Finding] = []
    for part in reading.parts:
        if not wanted.may_be(part):
            continue
        why = wanted.why_not(part)
        if why is None:
            return replace(
                reading, job=part.job, weights=part.weights, why_not=part.why_not, gathered=None
            )
        found.append(why)
    if reading.gathered is not None and reading.job is not None:
        # Whose units these are is not told.
        why = WEIGHTS_NEVER_HELD() if wanted.back is not None else misfit(wanted.own, reading.job)
        return replace(reading, job=None, why_not=(why,)) if why else reading
    why_not = tuple(dict.fromkeys(found)) or reading.why_not
    return replace(reading, job=None, weights=None, gathered=None, why_not=why_not)


def flows_of(job: LearnedJob, readings: Sequence[FlowReading]) -> Iterator[FlowKey]:
    """Both directions of every connection of a job."""
    peers = {reading.seen.key: reading.peer for reading in readings}
    for edge in job.edges:
        for key in edge.all_flows:
            yield key
            peer = peers.get(key)
            if peer is not None:
                yield peer


class FlowClaims:
    """Which flows are whose, in files beside what each extractor learned."""

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        self._run, self._config = run, config
        self._taken: set[int] = set()
        """Jobs before this one whose flows are not read here any more."""

    @property
    def _before(self) -> list[RunDir]:
        """Jobs that have their turn before this one."""
        reader, config = self._run.reader, self._config
        own = JobTableConfig(hosts=config.hosts, model=config.model if config.job else None)
        first = list(range(1, reader + 1))
        if config.job:
            first = [n for n in first if stated_alike(own, config.job[n - 1])]
        return [self._run.port.job_run_dir(number) for number in first]

    def is_own_turn(self, extractors: Sequence[Extractor]) -> bool:
        """Whether all that have their turn before have claimed theirs: nothing of that is read."""
        for number, run in enumerate(self._before):
            if number in self._taken:
                continue
            rings = claimed_flows(run)
            if rings is None and run.no_job_found.exists():
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

    def other_jobs(self, extractors: Sequence[Extractor]) -> tuple[EarlierJob, ...]:
        """The jobs beside this one that were learned."""
        reader, port = self._run.reader, self._run.port
        numbers = (n for n in range(job_count(self._config)) if n != reader)
        further = [port.job_run_dir(number + 1) for number in numbers]
        known = [(run, rings) for run in further if (rings := claimed_flows(run)) is not None]
        return tuple(earlier_job_of(run, rings, extractors) for run, rings in known)

    def others_gave_up(self) -> bool:
        """None of those before holds back frames any more for a job it may still learn."""
        left = [run for n, run in enumerate(self._before) if n not in self._taken]
        return all(run.unlearned.exists() for run in left)

    def claim_flows(
        self,
        extractors: Sequence[Extractor],
        names: Sequence[Mapping[FlowKey, JoinedFlow]],
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
        write_atomically(self._run.claimed, msgspec.json.encode(rings))


def claimed_flows(run: RunDir) -> list[list[int]] | None:
    """[ring] indices of the flows that a job has; None before it is learned."""
    if not run.learned_job.exists():
        return None  # written before that, but not for good
    with suppress(FileNotFoundError):
        return msgspec.json.decode(run.claimed.read_bytes(), type=list[list[int]])
    return None
