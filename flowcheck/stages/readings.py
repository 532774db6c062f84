"""A reading of what is staged, in a process of its own: the stage goes on extracting meanwhile."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from flowcheck.plane.merge import Joined
from flowcheck.stages.apart import Named
from flowcheck.stages.living import die_with_parent
from flowcheck.stages.proof import consistent
from flowcheck.stages.wanted import Wanted, flows_of, of_wanted
from flowcheck.wire.job import Job
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.jobs.late.amid import Expected, join_expected
from flowcheck.wire.learn.jobs.late.joined import from_start, join_job, knows, of_job
from flowcheck.wire.lives import lives
from flowcheck.wire.parted import Parted
from flowcheck.wire.quiet import up_to_quiet
from flowcheck.wire.seen import FlowKey, FlowSeen
from flowcheck.wire.stated import Stated
from flowcheck.wire.terms import Rule

YIELDS = 5
"""Added to a reading's nice value (sched(7)): on a core it shares with the stages they go first, as
a ring that overflows is lost for good and a job that is learned later is not."""


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


class ReadingProcess:
    """A forked child that reads what is staged where it lies, and what it found.

    The child shares the staged payloads, so nothing is copied but the outcome, which it leaves in
    a file in memory. It may be killed at any instant.
    """

    def __init__(self, seen: Joined, flows: Sequence[FlowSeen], terms: Terms) -> None:
        """seen: as joined just now. Raises OSError where no process can be had."""
        self.seen = seen
        self._began_s = time.monotonic()
        self._file = os.memfd_create("reading", os.MFD_CLOEXEC)
        self._pidfd = -1
        parent = os.getpid()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self._file)
            raise
        if not self._pid:
            _child(self._file, parent, seen, flows, terms)
        self._pidfd = os.pidfd_open(self._pid)

    def wait(self, limit_s: float) -> bool:
        """Whether it has ended, within so many seconds."""
        return bool(select.select([self._pidfd], [], [], limit_s)[0])

    def outcome(self) -> tuple[Outcome, float]:
        """Of a child that has ended: what it found, and the seconds it took.

        Raises RuntimeError where the reading itself raised.
        """
        took_s = time.monotonic() - self._began_s
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        os.close(self._pidfd)
        self._pidfd = -1
        with os.fdopen(self._file, "rb") as file:
            self._file = -1
            if code:
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                return Outcome(why_not=(f"the reading of the stream {how}",)), took_s
            file.seek(0)
            found = pickle.load(file)
        assert isinstance(found, Outcome)
        if found.broke:
            raise RuntimeError(f"a reading of the stream failed:\n{found.broke}")
        return found, took_s

    def kill(self) -> None:
        """Ends it if it still runs; nothing of it is left."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._pidfd)
        if self._file >= 0:
            os.close(self._file)
        self._pidfd = self._file = -1


def _child(file: int, parent: int, seen: Joined, flows: Sequence[FlowSeen], terms: Terms) -> None:
    """The child's whole life: no line of the stage, and no handler of its, runs after it."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not die_with_parent(parent):
            return
        gc.freeze()  # what the stage holds is not looked through, so its pages stay shared
        os.nice(YIELDS)
        try:
            found = told(seen, flows, terms)
        except Exception:
            found = Outcome(broke=traceback.format_exc())
        with os.fdopen(file, "wb", closefd=False) as out:
            pickle.dump(found, out, protocol=pickle.HIGHEST_PROTOCOL)
        code = 0
    finally:
        os._exit(code)


def told(seen: Joined, flows: Sequence[FlowSeen], terms: Terms) -> Outcome:
    """A job by its start-up, or one that is known and joined amid its run."""
    known, model = terms.known.job, terms.known.model
    if known is None or not knows(known, seen.messages):
        if model is not None and not any(map(from_start, seen.messages)):
            return _stated(model, seen, flows, terms)
        return outcome_of(read(seen, flows, terms))
    job, why_not = join_job(known, seen.messages, ended=terms.ended)
    if job is not None:
        return Outcome(job=job)
    others = [m for m in seen.messages if not of_job(known, m.flow)]
    if any(from_start(message) for message in others):  # it may have been launched anew meanwhile
        rest = [flow for flow in flows if not of_job(known, flow.key)]
        outcome = outcome_of(read(replace(seen, messages=others), rest, terms))
        if outcome.job is not None:
            return outcome
    return Outcome(why_not=(why_not,), joining=True)


def _stated(model: Expected, seen: Joined, flows: Sequence[FlowSeen], terms: Terms) -> Outcome:
    job, why_not = join_expected(
        model,
        flows,
        seen.messages,
        ended=terms.ended,
        release=terms.release,
        logged=() if terms.stated is None else terms.stated.rings,
    )
    return Outcome(why_not=(why_not,), joining=True) if job is None else Outcome(job=job)


def read(seen: Joined, flows: Sequence[FlowSeen], terms: Terms) -> Reading:
    """The first life of a job that proves one: a later one is no part of it."""
    *over, (flows, messages) = lives(flows, seen.messages)
    for earlier in over:
        reading = read_stream(
            *earlier,
            release=terms.release,
            before=terms.before,
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
    if weights is None or not weights.complete:
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
        numbers=numbers,
        flows=tuple(flows_of(reading.job, reading.flows)),
        beside=len(others),
    )
