"""The active job: placement of its bytes, complete steps for the updater, lost steps."""

from __future__ import annotations

import time
from collections.abc import Sequence

from flowcheck.findings.catalog.lost_steps import (
    APPLIED_IN_DOUBT,
    CAPTURE_ENDED,
    COPIES_DIFFER,
    FLOWS_WENT_ON,
    FLOWS_WENT_ON_AFTER_OVERRUN,
    LOG_BEGINS_BEHIND,
    LOST_AS_PLANNED,
    NOT_GATHERED,
    ONLY_ACCUMULATED,
    PAUSES_UNBROKEN,
    SILENT_MIRROR_POINTS,
    STAGING_FULL,
    STEP_AWAITS_CHECKPOINT,
    STEP_GIVEN_UP_AT_END,
    STEP_LOGGED_LACKING,
    STEP_LOST,
    STEP_LOST_JOINS_AGAIN,
    STEP_SHORT,
    STEP_TAINTED,
    STEP_WAS_LOST,
)
from flowcheck.findings.finding import Entry, Finding
from flowcheck.messages import (
    JobLearned,
    Note,
    ShardReady,
    StepArrived,
    StepDoubtful,
    StepLost,
    StepShort,
)
from flowcheck.plane.extraction.payload_extractor import NO_LIMIT, Extractor, place_staged_bytes
from flowcheck.plane.shared_memory.gradient_double_buffer import GENERATIONS, GradientShard
from flowcheck.stages.extraction.differing_report import DifferingReporter
from flowcheck.stages.extraction.gradient_checks import GradientCheck
from flowcheck.stages.extraction.installed_flow_plans import InstalledPlans
from flowcheck.stages.extraction.job_restart import JobRestart
from flowcheck.stages.extraction.shard_generations import IncompleteIteration, ShardGenerations
from flowcheck.stages.job_state.assumptions import add_assumption
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.unused_parameters import UnusedParameterMap
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.staged_messages.across_rings import CrossRingReassembly
from flowcheck.stages.staged_messages.staging_space import (
    bytes_to_place,
    held_packets_crowded,
    rings_drained,
    staged_message_count,
    stalled_extractors,
)
from flowcheck.stages.zmq_sockets import StageSockets
from flowcheck.step_numbers import Iteration, Step
from flowcheck.wire.training_job.learned_job import FollowedData, LearnedJob

WENT_ON = FLOWS_WENT_ON, FLOWS_WENT_ON_AFTER_OVERRUN, SILENT_MIRROR_POINTS
"""Why nothing more of an iteration comes: every flow is two beyond it."""


class ActiveJob:
    """One learned job, until a later incarnation takes its place."""

    def __init__(
        self,
        run: RunDir,
        job: LearnedJob,
        extractors: Sequence[Extractor],
        shard: GradientShard,
        links: StageSockets,
        *,
        each: int,
        fresh: bool,
        taints: bool = False,
        joins: bool = False,
        bridges: bool = False,
        several: bool = False,
        names: Sequence[str] | None = None,
    ) -> None:
        """Installs the job's plans; all of it may have been done before a kill.

        each: all-reduced backward passes per step of the trainer; fresh: the job was learned just
        now; taints: its optimizer steps each element by itself; joins: it may be joined again after
        a lost step; bridges: a trainer's checkpoint may end the wait behind a step that lacks
        bytes; several: other extractors follow other jobs on the same ports; names: of the
        parameters, where they are known.
        """
        self._each, self._several = each, several
        self._run, self._extractors, self._links = run, extractors, links
        self._reassembly = CrossRingReassembly(run.learned_folder / "numbers")
        self._broken: tuple[Iteration, Finding] | None = None
        self._read_out = False  # all that is staged was read once more, as nothing more comes
        self.why: Finding | None = None
        """What kept the replica from more."""
        self._alone = job.kind is FollowedData.PARAMETERS
        """Every step is whole by itself: a lost one costs what of it did not come."""
        self._stopped = False
        scrutiny = GradientCheck(job, each, run.replica)
        self._taints, self._bridges, self._joined = taints, bridges, job.awaits_base
        """Its optimizer steps each element by itself: a byte that never comes costs its element."""
        self._used = UnusedParameterMap(job, each)
        self._inferred = not fresh
        """Numbers of messages were told by the plan, or may have been in a life before."""
        self._differing = DifferingReporter(run, job, extractors, names)
        self.generations = ShardGenerations(
            shard,
            scrutiny.problem,
            doubtful=self._tell_doubtful,
            taints=taints,
            alone=self._alone,
            apart_bytes=self._used.gradient_bytes,
            differing=self._tell_differing,
            wanted=lambda: max(x.wanted_iteration for x in extractors),
        )
        self.generations.open_free()
        base = incarnation_of(run).iterations
        self.planned = InstalledPlans(
            run, job, extractors, base=base, name=self._name, fresh=fresh, joins=joins
        )
        self._left_out = self.planned.deviations.left_out
        """Iterations, of those not handed on yet, in or before which something outside the plan was
        left out."""
        self.planned.restore(lost=self.lost)
        self.planned.install(lost=self.lost)
        self._more_staged = True
        """Staged messages whose place is known may be left from the turn before."""

    @property
    def lost(self) -> bool:
        short = self.generations.incomplete_iteration()
        return self._stopped or (short is not None and short.lost)

    @property
    def awaits_updater(self) -> bool:
        """Whether the updater still has steps to apply before it is clear that a job is a later
        incarnation of this one, where several jobs use the same ports."""
        return self._several and self.generations.waiting

    def _name(self, iteration: Iteration) -> Step:
        """The trainer's step that an iteration of the shard belongs to."""
        return incarnation_of(self._run).step_within(iteration, self._each)

    def fill(self, succession: JobRestart, *, idle: bool, looks: bool) -> int:
        """Places staged messages, publishes complete steps to the updater, and gives up incomplete
        ones.

        idle: nothing new was extracted; looks: this turn looks at what is staged.
        """
        generations = self.generations
        self.planned.install(lost=self.lost)
        done = 0
        if any(self.planned.late_flows) and looks and not self.awaits_updater:
            done += succession.check_new_flows(self._extractors, self.planned, at_once=False)
            if succession.successor_proved:
                return done
        looks = looks or self._more_staged
        opened = generations.open_free()
        if opened or idle or held_packets_crowded(self._extractors) or looks:
            done += opened + self.assign_staged(bytes_to_place(self._extractors))
        self._hand_on()
        short = generations.incomplete_iteration()
        if short is None or self.lost or done:
            return done
        if looks and (done := self._skip_unplanned(short, ended=rings_drained(self._extractors))):
            return done
        if short.iteration in self.generations.refused:
            why = self.generations.refused[short.iteration]
            # Nothing of it is missing: all that follows is as doubtful.
            self._broken = (short.iteration, why) if self._alone else self._broken
            return self._lose(short, why)
        if self._refused_or_whole(short):
            return self._lose(short, COPIES_DIFFER(short.conflict_bytes))
        over = self._alone and rings_drained(self._extractors) and not short.covered_bytes
        if self._broken is not None and short.iteration >= self._broken[0] and not over:
            return self._lose(short, self._broken[1])
        if stalled_extractors(self._extractors) and any(self.planned.late_flows):
            succession.drop_later_flows(self.planned)
            return self.assign_staged()
        held_up = generations.waiting or generations.late_undecided
        if stalled_extractors(self._extractors) and not held_up:
            return self.abandon_step(short, STAGING_FULL())
        # A whole step before it frees a generation first: then what waits is read again.
        if (
            looks
            and not generations.waiting
            and (passed := self.planned.passage.why_nothing_more_comes(short.iteration)) is not None
        ):
            return self.abandon_step(short, passed)
        return 0

    def _hand_on(self) -> None:
        """Publishes complete iterations to the updater, and reports what was found about those it
        has applied."""
        self.generations.report_late_conflicts()
        finished = self.generations.newly_complete()
        if finished and self.planned.unproven_pauses():
            add_assumption(self._run, PAUSES_UNBROKEN())
        for iteration, generation in finished:
            self._links.send("update", ShardReady(iteration=iteration, generation=generation))
            self._links.report(StepArrived(step=self._name(iteration), time_ns=time.time_ns()))

    def _tell_differing(self, generation: int, last: bool) -> None:
        """Reports copies that differ, with both values. last: as of DifferingReporter.news."""
        shard = self.generations.shard
        step = self._name(shard.iteration(generation))
        found = self._differing.news(shard, generation, step, last=last)
        if found is not None:
            self._links.report(found)

    def _refused_or_whole(self, short: IncompleteIteration) -> bool:
        """Whether copies differ and nothing more is waited for: the whole iteration is refused for
        it, or only these bytes of it are not known."""
        if not (short.conflict_bytes or short.doubted):
            return False
        whole = short.covered_bytes == self.generations.shard.gradient_bytes
        return whole or not self._apart(short)

    def _apart(self, short: IncompleteIteration) -> bool:
        """Whether bytes of it that differ are as good as missing, and it goes on without them."""
        goes_on = self._taints or self._may_bridge
        return goes_on and not self._alone and self.generations.is_placed(short.generation)

    def abandon_step(self, short: IncompleteIteration, why: Finding) -> int:
        """Nothing more arrives for this step: declares it lost. What waits behind the loss may
        still complete it."""
        if short.iteration in self.generations.refused:
            return self._lose(short, self.generations.refused[short.iteration])
        return self._explain() or self._lose(short, why)

    def _explain(self) -> int:
        """Passes missing messages where sizes prove that they were as planned. Returns how much was
        done."""
        passed = self.planned.pass_lost_messages_as_planned(self._reassembly.numbers)
        self._inferred = self._inferred or bool(passed)
        for found in passed:
            self._note(found)
        return len(passed) + self.assign_staged() if passed else 0

    def _skip_unplanned(self, short: IncompleteIteration, *, ended: bool) -> int:
        """Reads flows that left their plan again: messages between the steps are identified and
        skipped."""
        self._read_out = (
            bool(ended or stalled_extractors(self._extractors)) and not self.generations.waiting
        )
        if self._broken is not None:
            return 0
        outcome = self.planned.deviations.resolve(
            self._extractors,
            self._reassembly.numbers,
            open_iteration=Iteration(short.iteration + GENERATIONS - 1),
            at_once=self._read_out,
        )
        self._broken = outcome.broken
        kept = {one for one in self._left_out if one >= short.iteration}
        self._left_out = kept | outcome.left_out
        for found in outcome.notes:
            self._note(found)
        return outcome.done and outcome.done + self.assign_staged()

    def finish_before_restart(self, succession: JobRestart) -> int:
        """A later incarnation is proved: finishes the last complete steps of this one."""
        generations = self.generations
        self.planned.install(lost=self.lost)
        done = generations.open_free() + self.assign_staged()
        self._hand_on()
        short = generations.incomplete_iteration()
        if short is not None and not short.lost:
            done = done or self._skip_unplanned(short, ended=True)
            if not done and self.planned.pass_lost_messages_as_planned(self._reassembly.numbers):
                done = self.assign_staged()
        if done or generations.waiting or generations.late_undecided:
            return done
        if short is not None and short.covered_bytes and not short.lost:
            self._note(STEP_GIVEN_UP_AT_END(self._name(short.iteration)))
        self.planned.ignore_planned()
        generations.shard.clear()
        self.assign_staged()
        folder = succession.commit()
        self._links.send("update", JobLearned(path=str(folder)))
        return 1

    def assign_staged(self, limit_bytes: int = NO_LIMIT) -> int:
        """Places staged messages whose place is known by now, some of them where they are more than
        `limit_bytes`. Returns how many."""
        done = self._reassembly.deliver_orphans(self._extractors)
        self._reassembly.number(self._extractors)
        told = self._reassembly.number_behind_gaps(self._extractors, self.planned.plans)
        self._inferred = self._inferred or told > 0
        placed, self._more_staged = place_staged_bytes(
            self._extractors, self._reassembly.numbers, limit_bytes
        )
        return done + placed

    def _tell_doubtful(self, iteration: Iteration, conflict_bytes: int) -> None:
        """Reports an applied step within which two copies differ. It cannot be undone; every later
        step rests on it."""
        message = StepDoubtful(step=self._name(iteration), conflict_bytes=conflict_bytes)
        self._links.report(message)
        found = APPLIED_IN_DOUBT(step=message.step, bytes=conflict_bytes)
        add_assumption(self._run, found)
        self._note(found)

    def _lose(self, short: IncompleteIteration, why: Finding) -> int:
        """Declares a step lost: the replica stops before it, while capture and counting continue.
        In sharded training a loss costs only the lost parameters; by a rule that steps each element
        by itself only the elements."""
        shard, in_flight = self.generations.shard, why.is_any_of(CAPTURE_ENDED)
        if self._may_be_partial(short, why):
            if self._inferred:
                add_assumption(self._run, LOST_AS_PLANNED())
            return self._go_on_without(short, why, self._costs(short, why))
        broken = self._broken is not None and short.iteration >= self._broken[0]
        self._stopped = self._alone and broken
        if self._alone and not broken:
            return self._go_on_without(short, why, STEP_SHORT)
        message = self._report_lost(short, why)
        named = message.step
        if not self._stopped:
            shard.mark_lost(short.generation)
        self.why = STEP_LOST(step=named, reason=message.why)
        self._links.send("update", message)
        begun = staged_message_count(self._extractors)
        in_flight = in_flight and begun < self.planned.messages_of_iteration
        if not in_flight and self.planned.rejoin_midstream():
            self._note(STEP_LOST_JOINS_AGAIN(named))
        else:
            self.planned.ignore_planned()
        self.assign_staged()
        return 1

    def _costs(self, short: IncompleteIteration, why: Finding) -> Entry:
        """What a partial iteration costs, as the operator is told."""
        known = incarnation_of(self._run)
        if not known.ends_step(short.iteration, self._each):
            return ONLY_ACCUMULATED
        if self._taints:
            return STEP_LOGGED_LACKING if known.step is None else STEP_TAINTED
        self._report_lost(short, why)
        return LOG_BEGINS_BEHIND if known.step is None else STEP_AWAITS_CHECKPOINT

    def _report_lost(self, short: IncompleteIteration, why: Finding) -> StepLost:
        missing, why = self.generations.missing(short, why)
        message = StepLost(step=self._name(short.iteration), missing=missing, why=why)
        self._links.report(message)
        return message

    @property
    def _may_bridge(self) -> bool:
        """Whether a trainer's checkpoint may end the wait behind a step that lacks bytes."""
        return self._bridges and (self._joined or incarnation_of(self._run).step is not None)

    def _may_be_partial(self, short: IncompleteIteration, why: Finding) -> bool:
        """Whether an iteration of gradients is handed on as far as it came: nothing of it may still
        come, and all that came is in its place. A rule that steps each element by itself takes it;
        by another one the replica waits for a trainer's checkpoint of its step or a later one. A
        job that waits for a base logs it with what it lacks, or begins its log behind it; then the
        base must not be of the step that the job began with."""
        shard = self.generations.shard
        if self._alone or not (self._taints or self._may_bridge):
            return False
        if short.lost or not short.covered_bytes or (short.doubted and self._taints):
            return False
        if short.conflict_bytes and not self._apart(short):
            return False
        if self._broken is not None or short.iteration in self.generations.refused:
            return False
        if self._inferred and self._left_out & {short.iteration, short.iteration + 1}:
            return False  # what is behind the gap may be of what was left out
        # A whole iteration behind it: what it lacks was lost, and is not under way.
        later = shard.generation_of(Iteration(short.iteration + 1))
        behind = later is not None and shard.covered_bytes(later) == shard.gradient_bytes
        came = short.covered_bytes == shard.gradient_bytes
        if not behind and not came and not why.is_any_of(*WENT_ON):
            return False
        if self.planned.placement_unsure(self._reassembly.numbers, short.iteration):
            return False
        missing = self.generations.unknown(short.generation)
        # Who has a gradient at all stands behind the gradients.
        if not missing or missing[-1][1] > self._used.gradient_bytes:
            return False
        return self.generations.problem_of_partial(short.generation) is None

    def _go_on_without(self, short: IncompleteIteration, why: Finding, said: Entry) -> int:
        """Hands an iteration to the updater as far as it came. said: how the operator is told."""
        shard, named = self.generations.shard, self._name(short.iteration)
        absent = sum(stop - start for start, stop in self.generations.unknown(short.generation))
        shard.mark_partial(short.generation)
        self._note(said(step=named, bytes=absent, reason=why))
        self._links.report(StepShort(step=named, missing_bytes=absent, why=why))
        self._links.send(
            "update", ShardReady(iteration=short.iteration, generation=short.generation)
        )
        return 1 + self.assign_staged()

    def end(self) -> tuple[int, int | None]:
        """Settles every step once every frame is extracted. Returns (how much was done, the last
        complete step once nothing more can be done)."""
        held = staged_message_count(self._extractors)
        self.generations.report_late_conflicts(last=True)
        if self.generations.open_free(ended=True):
            return 1 + self.assign_staged(), None
        short = self.generations.incomplete_iteration()
        if short is None or self.generations.conflict_undecided:
            return 0, None
        if self._alone and (self._stopped or not self.generations.waiting) and self._read_out:
            return self._end_alone(short)
        if held and not short.lost and (self.generations.waiting or not self._read_out):
            return 0, None
        if not short.lost and (short.covered_bytes or held):
            return self.abandon_step(short, CAPTURE_ENDED()), None
        if short.lost and self.why is None:
            # By this stage, before it was restarted.
            self.why = STEP_WAS_LOST(self._name(short.iteration))
        return 0, short.iteration - 1

    def _end_alone(self, short: IncompleteIteration) -> tuple[int, int | None]:
        """Ends sharded training: the parameters that the last step made are never gathered; an
        incomplete step before it is applied as far as it came."""
        if self._stopped or not (short.covered_bytes or short.conflict_bytes):
            return 0, short.iteration - 1
        if done := self._explain():
            return done, None
        later = self.generations.shard.generation_of(Iteration(short.iteration + 1))
        if later is not None and self.generations.shard.covered_bytes(later):
            return self._lose(short, CAPTURE_ENDED()), None
        self.why = NOT_GATHERED(self._name(short.iteration))
        return 0, short.iteration - 1

    def _note(self, found: Finding) -> None:
        self._links.report(Note(stage="extract", finding=found))
