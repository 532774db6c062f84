"""Stage: applies complete steps to the replica, in order, each exactly once.

This order makes a kill harmless: the replica commits the step; then its line is written to
steps.jsonl; only then is the gradient released from its source or log.

What the stage does is one of the states in job_state/lifecycle_state_machines.py. Each turn first
derives the state from the facts, and writes it to the lifecycle record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from flowcheck.config import JobConfig
from flowcheck.findings.catalog.run_directories import NO_BASE_AWAITED
from flowcheck.findings.finding import Finding
from flowcheck.messages import Message, Note, StepApplied
from flowcheck.replica.element_ranges import Ranges
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.preflight.optimizer_preflight import check_optimizer
from flowcheck.replica.sharding.gather_units import UnitSplitter
from flowcheck.replica.taint import tainted_elements
from flowcheck.replica.torch_without_compiler import load_torch
from flowcheck.stages.job_state.gathered_parameters import gathered_parameters
from flowcheck.stages.job_state.given_checkpoint_request import (
    awaits_later_step,
    is_asked,
    refuse_request,
    take_request,
)
from flowcheck.stages.job_state.lifecycle_record_schema import (
    CheckpointRequest,
    Incarnation,
    LifecycleRecord,
    RequestKind,
)
from flowcheck.stages.job_state.lifecycle_state_machines import ReplicaState
from flowcheck.stages.job_state.lifecycle_writers import UpdateLifecycle
from flowcheck.stages.job_state.model_layout import optimizer_of
from flowcheck.stages.job_state.training_facts import training_of
from flowcheck.stages.job_state.unused_parameters import (
    UnusedParameterMap,
    UsedMask,
    note_first_unused_step,
)
from flowcheck.stages.replica_update.anchor_replay import AnchorReplay
from flowcheck.stages.replica_update.base_checkpoint import BaseWait
from flowcheck.stages.replica_update.early_step import EarlyStep
from flowcheck.stages.replica_update.gathered_check import GatheredCheck
from flowcheck.stages.replica_update.grad_norm_exchange import GradNormExchange
from flowcheck.stages.replica_update.gradient_sources.gradient_source import (
    ArrivedGradient,
    GradientSource,
)
from flowcheck.stages.replica_update.gradient_sources.source_registry import source_kind_of
from flowcheck.stages.replica_update.handover import Handover
from flowcheck.stages.replica_update.healing import take_patch
from flowcheck.stages.replica_update.kept_steps import KeptSteps
from flowcheck.stages.replica_update.late_differences import (
    in_doubt,
    late_finding,
    record_late,
    taint_late,
)
from flowcheck.stages.replica_update.loss_scale_check import LossScaleCheck
from flowcheck.stages.replica_update.model_buffers import Buffers
from flowcheck.stages.replica_update.replica_creation import open_replica
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import Position, stage_at
from flowcheck.stages.zmq_sockets import StageSockets
from flowcheck.step_numbers import Iteration, Step
from flowcheck.wire.traffic.observed_messages import Range


@dataclass(frozen=True, slots=True)
class UpdaterState:
    """The replica, the source of its gradients, and the records of its steps."""

    replica: Replica
    source: GradientSource
    records: StepLog
    waiting: BaseWait
    map: UnusedParameterMap
    placing: UnitSplitter | None  # of sharded training
    ahead: EarlyStep
    anchors: AnchorReplay
    buffers: Buffers
    kept: KeptSteps
    gathered: GatheredCheck

    def gradient_of(self, arrived: ArrivedGradient) -> tuple[np.ndarray, UsedMask]:
        """What the replica takes of an iteration: (bytes, [parameters] bool: those that have
        bytes)."""
        if self.placing is not None:
            return gathered_parameters(self.placing, arrived.data, arrived.unbelieved)
        return self.map.split(arrived.data)

    def iteration(self, followed: Incarnation, each: int) -> Iteration | None:
        """The source's number of the iteration that ended the replica's step; None: the replica
        waits for a base. each: iterations per step."""
        return None if followed.step is None else followed.iteration_of(self.replica.step, each)

    def close(self) -> None:
        self.waiting.close()
        self.anchors.close()
        self.kept.close()
        self.source.close()
        self.records.close()
        self.replica.close()


class UpdateService:
    """The only writer of the replica, and of the number of the last released gradient."""

    name = "update"

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        assert config.optimizer is not None, "checked when the configuration was read"
        self._run, self._config = run, config
        self._each = config.optimizer.synced_backwards
        """All-reduced backward passes per step of the trainer."""
        self._extracts = stage_at(Position.TAIL).exists(config)
        self._open: UpdaterState | None = None
        self._grad_norms = GradNormExchange(run, config, self._say)
        self._scales = LossScaleCheck(run, config, self._say)

    def start(self, links: StageSockets) -> None:
        self._links = links
        load_torch()
        assert self._config.optimizer is not None
        check_optimizer(self._config.optimizer)  # refused now, not in a step
        self._lifecycle = UpdateLifecycle(self._run, self._say)
        self._handover = Handover(self._run, self._config, self._lifecycle)
        self._opened()

    def _opened(self) -> UpdaterState | None:
        """Opens or creates the replica once the job is learned; None until then."""
        run = self._run
        if self._open is not None or (kind := source_kind_of(run)) is None:
            return self._open
        job = training_of(run)
        assert job is not None, "no kind of source is there without it"
        optimizer = optimizer_of(job, self._config)
        self._each = optimizer.synced_backwards
        known = UnusedParameterMap(job, self._each)
        assert kind.open is not None, "a copy has another updater"
        source = kind.open(run, job, optimizer)  # first: of one that is refused no replica is made
        try:
            replica, placing = open_replica(
                run, self._config, job, leaves_out=known.may_skip_parameters, say=self._say
            )
        except BaseException:
            source.close()
            raise
        followed = self._lifecycle.record().incarnation
        if placing is not None and followed.step is None:  # it needs no base
            self._lifecycle.state_known(msgspec.structs.replace(followed, step=Step(0)))
        records = StepLog(run, self._config, replica)
        waiting = BaseWait(run, self._config, source.gradient_bytes)
        alone, behind = (
            placing is None and not known.may_skip_parameters and not job.padding,
            int(bool(self._config.together)),
        )
        ahead = EarlyStep(replica, source.partial, alone=alone, earlier_steps=behind)
        anchors = AnchorReplay(run, self._config, source, self._each)
        buffers = Buffers(run, job, replica, source, self._each)
        kept = KeptSteps(run, self._config, replica, self._say, gathered=placing is not None)
        gathered = GatheredCheck(run, job, replica, source, records, self._say)
        given = waiting, known, placing, ahead, anchors, buffers, kept, gathered
        self._open = UpdaterState(replica, source, records, *given)
        self._finish_interrupted(self._open)
        return self._open

    def _finish_interrupted(self, o: UpdaterState) -> None:
        """Writes the line and releases the gradient of a step that was committed before a kill."""
        iteration, last = o.iteration(self._followed, self._each), o.records.last_step()
        if iteration is None:
            return
        arrived = o.source.arrived(iteration)  # committed: what differs since is told as that
        own = o.gradient_of(arrived)[0] if arrived is not None else None
        if own is None:
            logged = o.waiting.logged_gradient(iteration)
            logged = o.anchors.kept_gradient(iteration) if logged is None else logged
            own = None if logged is None else o.map.split(logged)[0]
        if last < o.replica.step:
            o.records.write(o.replica, 0.0, own)
        if iteration > o.source.applied_iteration:
            if arrived is not None:
                o.anchors.keep_gradient(o.replica, iteration, arrived.data)
            o.source.release(iteration)
            self._tell(o, 0.0)

    def work(self) -> int:
        o = self._opened()
        if o is None:
            return 0
        record = self._record_of_step(o)
        followed = record.incarnation
        waits = followed.step is None or followed.lacking is not None or o.waiting.was_used
        again = None if waits else o.anchors.next_replay_step(o.replica, followed)
        state = self._state(o, record, replays=again is not None)
        self._lifecycle.enter(state, followed.number)
        if state is not ReplicaState.HANDED_OVER:  # else of a past that is over in a moment
            request = take_request(self._lifecycle, self._reached(o, followed))
            if request is not None:
                return self._take(o, request, followed)
        self._settle_late(o, followed, waits=waits)
        self._say(o.source.new_finding())
        o.kept.enter(followed.number)
        o.kept.tell()
        o.buffers.store_arrived(followed)
        o.gathered.look(followed, self._each)
        arrived = self._whole(o, record)
        if waits:
            return self._wait(o, followed, arrived)
        if again is not None:
            return self._replay_step(o, *again, arrived)
        iteration = o.source.next_iteration
        step = followed.step_of(iteration, self._each)
        if arrived is None:
            return self._look_at_successor(o) or o.ahead.apply_available(step, iteration)
        applied: float | None = 0.0
        if step is not None:
            missing = arrived.unbelieved if o.placing is None else ()
            if missing and not o.replica.optimizer.per_element:
                return self._pass_lacking(o, followed, arrived)
            applied = self._step(o, step, *o.gradient_of(arrived), arrived.certain, missing)
            if applied is None and (arrived.doubted or not self._grad_norms.peer_gone):
                return 0
            if applied is None:
                self._lifecycle.enter(ReplicaState.STOPPED, followed.number)
            o.anchors.keep_gradient(o.replica, iteration, arrived.data)
        # Else the trainer only accumulates: the next all-reduce holds this gradient as well.
        o.source.release(iteration)
        if step is not None and applied is not None:
            self._tell(o, applied)
        return 1

    def _settle_late(self, o: UpdaterState, followed: Incarnation, *, waits: bool) -> None:
        """Taints what turned out to differ of iterations that are released."""
        for late in o.source.differing_late():
            step = followed.step_within(late.iteration, self._each)
            given = max(followed.anchored or 0, followed.base or 0)
            message = None
            if not followed.ends_step(late.iteration, self._each):
                pass  # the trainer only accumulates there: the step's own all-reduce has it as well
            elif waits:
                message = in_doubt(self._run, step, late)
            elif step > given:
                message = taint_late(self._run, o.replica, o.records, step, late)
            elif step > (followed.base or 0):
                # The trainer's state took its place: what was saved before that is left.
                reached = self._reached(o, followed)
                record_late(self._run, o.replica, o.records, step, late, reached)
            if message is not None:
                self._links.report(message)
                self._say(late_finding(message))
                if message.elements:
                    self._tell(o, 0.0)
            o.source.settle_late(late)

    def _record_of_step(self, o: UpdaterState) -> LifecycleRecord:
        """The record, by which a replica whose initial weights lack bytes that would reach every
        element waits for a checkpoint."""
        record = self._lifecycle.record()
        followed, replica = record.incarnation, o.replica
        known = followed.step is not None and followed.lacking is None
        if known and replica.commit.tainted and not replica.optimizer.per_element:
            self._lifecycle.state_known(
                msgspec.structs.replace(followed, last_lacking=replica.step)
            )
            record = self._lifecycle.record()
        return record

    def _state(self, o: UpdaterState, record: LifecycleRecord, *, replays: bool) -> ReplicaState:
        """The state that the facts give. replays: steps after an anchor must still be replayed."""
        followed, before, verdict = record.incarnation, record.update, record.verdict
        if replays:
            return ReplicaState.REPLAYING
        if verdict is not None:
            return ReplicaState.HANDED_OVER if verdict.followed else ReplicaState.STOPPED
        at = o.iteration(followed, self._each)
        if at is None or followed.lacking is not None:
            return ReplicaState.AWAITING_BASE
        if o.waiting.was_used:
            all_taken = o.waiting.closed and o.waiting.first_logged_after(at) is None
            return ReplicaState.STOPPED if all_taken else ReplicaState.CATCHING_UP
        if before.number != followed.number:
            return ReplicaState.APPLYING  # that a step is lost already is for the next look
        # What stopped an incarnation has gone from its source before a later one is offered.
        stopped = before.state is ReplicaState.STOPPED
        return ReplicaState.STOPPED if stopped or o.source.ended else ReplicaState.APPLYING

    @property
    def _followed(self) -> Incarnation:
        """The incarnation that is followed, as it is now."""
        return self._lifecycle.record().incarnation

    def _whole(self, o: UpdaterState, record: LifecycleRecord) -> ArrivedGradient | None:
        """The next iteration to apply, if it is complete and nothing contradicts it. Once a later
        incarnation is offered, all complete steps of this one were applied: anything that a
        restarted extractor finds since is after the handover."""
        if record.extract.offered is not None:
            return None
        arrived = o.source.arrived(o.source.next_iteration)
        return arrived if arrived is not None and arrived.certain() else None

    def _step(
        self,
        o: UpdaterState,
        step: Step,
        gradient: np.ndarray,
        used: UsedMask,
        certain: Callable[[], bool] = lambda: True,
        missing: Sequence[Range] | Ranges = (),
    ) -> float | None:
        """Applies a step and records it. Returns the seconds it took. None: it waits for another
        ring, or `certain` said at the very end that the gradient is not to be used. missing: as
        `Replica.begin` takes it."""
        began = time.perf_counter()
        own = self._grad_norms.clipped(o.replica.layout, step, gradient, used)
        if own is None:
            return None
        left_out = used if o.placing is None else None
        if left_out is not None and bool((o.replica.have_state() & ~left_out).any()):
            note_first_unused_step(self._run.first_unused_step, step)
        self._scales.before_step(o.replica)
        o.kept.before_step(own, used)
        if not o.ahead.finish(step, own, used, certain, missing):
            return None
        self._scales.after_step(o.replica, own)
        seconds = time.perf_counter() - began
        o.records.write(o.replica, seconds, gradient)
        return seconds

    def _wait(self, o: UpdaterState, followed: Incarnation, arrived: ArrivedGradient | None) -> int:
        """Logs complete iterations. Once the base is there, applies logged ones before more are
        logged."""
        bridged = followed.lacking is not None
        at = None if bridged else o.iteration(followed, self._each)
        if arrived is not None and arrived.unbelieved and not o.replica.optimizer.per_element:
            if at is None:
                return self._pass_lacking(o, followed, arrived)
            if not o.waiting.closed:  # what comes behind a closed log is of no use
                arrived = None  # what is logged is applied before it is passed
        if arrived is not None and (at is None or o.waiting.closed or not o.waiting.full):
            if followed.ends_step(arrived.iteration, self._each):
                any_base = bridged or (followed.step is None and o.map.joined)
                self._say(o.waiting.log_gradient(arrived, any_base=any_base))
            o.source.release(arrived.iteration)
        logged = o.waiting.first_logged_after(at) if at is not None else None
        if logged is not None:
            step = followed.step_of(logged.iteration, self._each)
            assert step is not None
            applied = self._step(o, step, *o.map.split(logged.gradient), missing=logged.lacks)
            if applied is None:
                return 0
            o.anchors.keep_gradient(o.replica, logged.iteration, logged.gradient)
            self._tell(o, applied)
        elif at is not None and not o.waiting.closed:
            o.waiting.empty_log()
        elif arrived is None:
            return self._look_at_successor(o)
        return 1

    def _pass_lacking(
        self, o: UpdaterState, followed: Incarnation, arrived: ArrivedGradient
    ) -> int:
        """Passes an iteration that lacks bytes which may matter to every element: the replica stays
        before its step, until a trainer's checkpoint of it or a later one is given. Later
        iterations are logged meanwhile; what was logged before is of no use any more."""
        ends = followed.ends_step(arrived.iteration, self._each)
        if ends and followed.step is None:
            o.waiting.empty_log()
        elif ends:
            step = followed.step_of(arrived.iteration, self._each)
            assert step is not None
            if followed.lacking is None or step > followed.lacking:
                o.waiting.empty_log()
                self._lifecycle.state_known(msgspec.structs.replace(followed, last_lacking=step))
        o.source.release(arrived.iteration)
        return 1

    def _reached(self, o: UpdaterState, followed: Incarnation) -> Step:
        """The last step whose gradient was applied or logged."""
        return o.replica.step if followed.step is None else o.anchors.last_step(o.replica)

    def _take(self, o: UpdaterState, request: CheckpointRequest, followed: Incarnation) -> int:
        """Takes a trainer checkpoint that was given. Runs again after a kill before its answer."""
        waits = followed.step is None or o.waiting.was_used
        given = o.replica, o.records, self._lifecycle, request, self._say
        if request.kind is RequestKind.ANCHOR:
            gathered, logged = o.placing is not None, o.waiting.iterations
            o.anchors.apply_anchor(*given, gathered=gathered, waits=waits, logged=logged)
            if o.replica.step == request.step:
                self._tell(o, 0.0)
        elif request.kind is RequestKind.PATCH:
            if take_patch(self._run, *given, waits=waits):
                self._tell(o, 0.0)
        elif followed.step is not None:
            refuse_request(self._lifecycle, request, o.replica.step, NO_BASE_AWAITED())
        else:
            released = o.source.applied_iteration
            o.waiting.settle(*given, joined=o.map.joined, released=released)
        return 1

    def _replay_step(
        self, o: UpdaterState, step: Step, gradient: np.ndarray, arrived: ArrivedGradient | None
    ) -> int:
        """Replays a step after one that a trainer checkpoint replaced. New iterations are kept
        until it is their turn, so that their source does not wait. arrived: the next iteration,
        where it is complete."""
        if arrived is not None:
            ends = self._followed.step_of(arrived.iteration, self._each)
            if arrived.unbelieved and ends is not None:
                o.replica.note_missing(ends, arrived.unbelieved)
            if o.anchors.keep_gradient(o.replica, arrived.iteration, arrived.data):
                o.source.release(arrived.iteration)
        lacked = o.replica.lacked(step)
        if self._step(o, step, *o.map.split(gradient), missing=lacked) is not None:
            self._tell(o, 0.0)
        return 1

    def _look_at_successor(self, o: UpdaterState) -> int:
        """Judges a later incarnation that waits; to be called once every complete step of this one
        is applied."""
        if not self._handover.verdict_due:
            return 0
        o.waiting.empty_log()
        self._say(
            self._handover.write_verdict(o.replica, o.source, o.records, o.anchors, self._each)
        )
        return 1

    def _tell(self, o: UpdaterState, seconds: float) -> None:
        tainted = tainted_elements(o.replica.tainted)
        message = StepApplied(
            step=o.replica.step, seconds=seconds, digest=o.replica.digest, tainted=tainted
        )
        if self._extracts:
            self._links.send("extract", message)
        if self._config.copies is not None:
            self._links.send("copies", message)
        self._links.report(message)
        if (lack := o.records.unwritten_lines()) is not None:
            self._links.report(lack)

    def _say(self, found: Finding | None) -> None:
        if found is not None:
            self._links.report(Note(stage=self.name, finding=found))

    def on_message(self, message: Message) -> None:
        """Every message is a nudge: `work` looks at the source itself."""

    def drained(self) -> bool:
        """Whether no complete step waits, in its source or, where the base is there, in the log."""
        o = self._open
        if o is None:
            return True
        record = self._lifecycle.record()
        followed = record.incarnation
        at = None if followed.lacking is not None else o.iteration(followed, self._each)
        replaying = at is not None and (
            o.waiting.first_logged_after(at) is not None
            or (o.waiting.was_used and not o.waiting.closed)
        )
        if at is not None and not replaying:
            replaying = o.anchors.next_replay_step(o.replica, followed) is not None
        early = awaits_later_step(self._run, self._reached(o, followed))
        asked = is_asked(self._run) and not early
        if self._handover.verdict_due or replaying or asked or o.source.differing_late():
            return False
        return self._whole(o, record) is None

    def stop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
