"""Flows that deviate from their plan are read again, and messages that belong to no step are
skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.lost_steps import (
    NEW_MESSAGES,
    PLACE_OF_STEP,
    PLACE_OF_STEP_ASSUMED,
    STEP_REFUSED,
    STEP_UNEXPLAINED,
)
from flowcheck.findings.finding import Finding
from flowcheck.plane.extraction.flow_plan_install import PLAN_ACTIVE, PLAN_SUSPENDED
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.stages.extraction.communicator_messages import CommunicatorMessages, MirroredFlow
from flowcheck.stages.job_state.assumptions import add_assumption
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration, Step
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.flow_plan import FlowPlan
from flowcheck.wire.training_job.learned_job import LearnedJob
from flowcheck.wire.unplanned_collectives.step_boundaries import (
    BucketPosition,
    NoReading,
    StepReader,
    StepReading,
)

DECISIONS_KEPT = 64
"""Decisions remembered: more than one plan keeps of its own."""
GROWTH = 1.25
"""Factor. Messages are looked at again once so many more wait: all looks together cost at most five
times the last one (1 / (1 - 1/1.25)). A choice: smaller looks sooner and costs more."""
MESSAGES_MAX = 4096
"""Messages of one flow that may wait for a reading; then no explanation is expected. A choice that
bounds staging and time."""
MODULUS = 1 << 64

Skip = tuple[int, int, int]
"""(from, resume, skipped), as struct fc_skip."""


class SkipDecision(msgspec.Struct, frozen=True):
    """One decision: which messages are skipped, and where the stream continues as planned."""

    communicator: int
    iteration: Iteration = msgspec.field(name="step")
    at: tuple[int, ...]
    """[lane] number of the message after the last bucket of `iteration`."""
    skips: tuple[tuple[Skip, ...], ...] = msgspec.field(name="cuts")
    """[lane]"""
    assumed: Finding | None = None
    left_out: tuple[Iteration, ...] = ()
    """Iterations in or before which something was left out; none where an earlier version wrote
    it."""


class _EarlierDecision(msgspec.Struct):
    """A decision that an earlier version wrote: `assumed` is a sentence, or empty."""

    communicator: int
    iteration: Iteration = msgspec.field(name="step")
    at: tuple[int, ...]
    skips: tuple[tuple[Skip, ...], ...] = msgspec.field(name="cuts")
    sentence_assumed: str = msgspec.field(default="", name="assumed")


def read_decisions(file: Path) -> list[SkipDecision]:
    """All decisions of a file, oldest first."""
    content = file.read_bytes()
    try:
        return msgspec.msgpack.decode(content, type=list[SkipDecision])
    except msgspec.ValidationError:
        earlier = msgspec.msgpack.decode(content, type=list[_EarlierDecision])
    return [
        SkipDecision(
            one.communicator,
            one.iteration,
            one.at,
            one.skips,
            earlier_finding(one.sentence_assumed) if one.sentence_assumed else None,
        )
        for one in earlier
    ]


@dataclass(slots=True)
class DeviationOutcome:
    """The result of one look at the suspended flows."""

    done: int = 0
    notes: list[Finding] = field(default_factory=list)
    broken: tuple[Iteration, Finding] | None = None
    """The iteration whose boundaries cannot be found, and why."""
    left_out: set[Iteration] = field(default_factory=set)
    """Iterations in or before which something was left out."""


class DeviationResolver:
    """Finds the step boundaries where flows deviate, once for all mirror points.

    Decisions are on file before the first plan is changed. A stage that is killed in between makes
    the remaining changes when it starts.
    """

    def __init__(
        self,
        run: RunDir,
        job: LearnedJob,
        plans: Mapping[FlowKey, FlowPlan],
        base: int = 0,
        name: Callable[[Iteration], Step] = Step,
        *,
        unbroken: bool = False,
    ) -> None:
        """base: the number of the shard's last iteration before this job's first one; here
        iterations are counted from 1. unbroken: nothing is skipped within a step. name: the
        trainer's name of an iteration."""
        self._name, self._unbroken = name, unbroken
        self._run, self._base = run, base
        self._file = run.learned_folder / "recuts"
        self._plans = plans
        self._readers = [StepReader(job, number) for number in range(len(job.communicators))]
        self._waited = [0] * len(self._readers)
        self._made: list[SkipDecision] = []
        if self._file.exists():
            self._made = read_decisions(self._file)

    @property
    def left_out(self) -> set[Iteration]:
        """Iterations of the shard in or before which something was left out, by every decision that
        is remembered."""
        return {Iteration(one + self._base) for made in self._made for one in _iterations_of(made)}

    def restore(self, extractor: Extractor, index: int, key: FlowKey) -> None:
        """Gives one planned flow of one mirror point every skip that was decided."""
        for decision in self._made:
            for lane, skips in zip(
                self._readers[decision.communicator].lanes, decision.skips, strict=True
            ):
                if key in lane.flows:
                    for skip in skips:
                        extractor.skip_messages(index, skip)

    def first_deviation(
        self, extractors: Sequence[Extractor], numbers: Mapping[tuple[FlowKey, int], int]
    ) -> Iteration | None:
        """The iteration in which the first message that is not read yet was not as planned; None:
        there is none."""
        found = []
        for reader in self._readers:
            own = list(_instances(extractors, reader))
            if any(instance.state == PLAN_SUSPENDED for instance in own):
                view = CommunicatorMessages(reader, self._plans, own, numbers)
                found.append(view.deviation()[0])
        return Iteration(min(found) + self._base) if found else None

    def resolve(
        self,
        extractors: Sequence[Extractor],
        numbers: Mapping[tuple[FlowKey, int], int],
        *,
        open_iteration: Iteration,
        at_once: bool,
    ) -> DeviationOutcome:
        """Reads communicators again that have a flow suspended at `open_iteration` or before.

        at_once: nothing more arrives, or there is no room for it.
        """
        outcome = DeviationOutcome()
        for number, reader in enumerate(self._readers):
            instances = list(_instances(extractors, reader))
            if not any(instance.state == PLAN_SUSPENDED for instance in instances):
                self._waited[number] = 0
                continue
            view = CommunicatorMessages(reader, self._plans, instances, numbers)
            iteration, trailing = view.deviation()
            waiting = view.waiting
            due = max(self._waited[number] + 1, int(self._waited[number] * GROWTH))
            if not at_once and (iteration > open_iteration - self._base or waiting < due):
                continue
            self._waited[number] = waiting
            self._read(number, view, Iteration(iteration + trailing), outcome, at_once=at_once)
        return outcome

    def _read(
        self,
        number: int,
        view: CommunicatorMessages,
        last: Iteration,
        outcome: DeviationOutcome,
        *,
        at_once: bool,
    ) -> None:
        reader = self._readers[number]
        iteration, trailing = view.deviation()
        start = self._start(number, view, iteration, trailing=trailing)
        if start is None:
            named = Iteration(iteration + self._base)
            outcome.broken = named, NEW_MESSAGES(self._name(named))
            return
        stream = view.known_stream()
        steps = max(1, last - start.iteration + 1)
        must = at_once or view.longest_wait > MESSAGES_MAX
        rings = {instance.extractor.ring.path for instance in view.instances}
        # One queue pair of a connection may be ahead of another.
        several = any(len(lane.flows) > 1 for lane in reader.lanes)
        view.gaps_open = (len(rings) > 1 or several) and not must
        if self._unbroken:
            skipped = reader.skip(stream, start, most=MESSAGES_MAX)
            reading = NoReading.WAIT if skipped is None and not must else skipped
        else:
            found = reader.read(stream, start, steps, at_once=must)
            reading = reader.skip(stream, start) if found is NoReading.NONE else found
        if reading is NoReading.WAIT:
            return
        if isinstance(reading, StepReading) and reading.refused:
            named = Iteration(iteration + self._base)
            refused = STEP_REFUSED(step=self._name(named), reason=reading.refused)
            outcome.broken = named, refused
            return
        skips = self._skips(view, start, reading) if isinstance(reading, StepReading) else None
        if skips is None or not isinstance(reading, StepReading):
            named = Iteration(iteration + self._base)
            outcome.broken = named, STEP_UNEXPLAINED(self._name(named))
            return
        decision = SkipDecision(
            number,
            reading.buckets[-1].iteration,
            reading.end,
            skips,
            reading.assumed,
            (iteration, last),
        )
        self._keep(decision)
        self._waited[number] = 0  # what still waits was not read with these skips
        outcome.done += self._apply(view, decision)
        outcome.left_out |= {Iteration(one + self._base) for one in _iterations_of(decision)}
        if reading.assumed is not None:
            add_assumption(self._run, PLACE_OF_STEP(reading.assumed))
            named_step = self._name(Iteration(iteration + self._base))
            outcome.notes.append(PLACE_OF_STEP_ASSUMED(step=named_step, reason=reading.assumed))

    def _start(
        self, number: int, view: CommunicatorMessages, iteration: Iteration, *, trailing: bool
    ) -> BucketPosition | None:
        """Where to begin reading: after the last bucket before `iteration`; None within
        iteration 0, of which only the plan is known. trailing: all buckets of `iteration` came as
        planned."""
        made = [decision for decision in self._made if decision.communicator == number]
        if made and made[-1].iteration >= iteration - 1:
            return BucketPosition(Iteration(made[-1].iteration + 1), 0, made[-1].at)
        if iteration <= view.first_iterations:
            start = BucketPosition(
                Iteration(view.first_iterations + 1), 0, view.after_first_buckets()
            )
            return start if trailing else None
        return BucketPosition(iteration, 0, view.after_iteration(Iteration(iteration - 1)))

    def _skips(
        self, view: CommunicatorMessages, start: BucketPosition, found: StepReading
    ) -> tuple[tuple[Skip, ...], ...] | None:
        """[lane] messages to skip; None where a suspended flow would continue as before."""
        out: list[tuple[Skip, ...]] = []
        for lane in range(len(start.at)):
            skipped = view.skipped_at(lane, start.at[lane])
            before, skips = start.at[lane], []
            stuck = view.deviating(lane)
            for bucket in found.buckets:
                count = view.messages_of(lane, bucket.op)
                if not count:
                    continue
                at = bucket.at[lane]
                now = (at - view.planned_number(lane, bucket.iteration, bucket.op)) % MODULUS
                # What is left out may be as many messages as the plan has there of no bucket.
                if now != skipped or (stuck is not None and before <= stuck < at):
                    skips.append((before, at, now))
                    skipped = now
                before = at + count
            if not skips and stuck is not None and stuck < found.end[lane]:
                return None
            out.append(tuple(skips))
        return tuple(out)

    def _keep(self, decision: SkipDecision) -> None:
        """Writes the decision to its file, whole or not at all. Like the plans, it need not outlive
        the machine."""
        self._made = [*self._made, decision][-DECISIONS_KEPT:]
        write_atomically(self._file, msgspec.msgpack.encode(self._made), durable=False)

    def _apply(self, view: CommunicatorMessages, decision: SkipDecision) -> int:
        for instance in view.instances:
            for skip in decision.skips[instance.lane]:
                instance.extractor.skip_messages(instance.index, skip)
            if instance.state == PLAN_SUSPENDED:
                instance.extractor.resume(instance.index)
        return len(view.instances)


def _iterations_of(decision: SkipDecision) -> tuple[Iteration, ...]:
    """Iterations, counted from 1, in or before which a decision left something out. An earlier
    version did not write them: then those around the last one that it read."""
    return decision.left_out or (Iteration(decision.iteration - 1), decision.iteration)


def _instances(extractors: Sequence[Extractor], reader: StepReader) -> Iterator[MirroredFlow]:
    """Every mirror point's own plan of every lane."""
    lanes = {flow: number for number, lane in enumerate(reader.lanes) for flow in lane.flows}
    for extractor in extractors:
        states = extractor.staging.plans()["state"]
        for index, key in enumerate(extractor.keys()):
            if key in lanes and states[index] in (PLAN_ACTIVE, PLAN_SUSPENDED):
                yield MirroredFlow(extractor, index, lanes[key])
