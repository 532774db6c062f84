"""A trainer checkpoint replaces the replica's state of a step, and the later steps are replayed
with gradients that were kept.

A kill at any instant costs nothing. The request counts as open until all changes are written, and
doing them again changes nothing more. A replica that is behind the last released gradient has steps
to replay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.job_restarts import (
    GRADIENTS_NOT_KEPT,
    NORMS_NOT_KEPT,
    PARAMETERS_ONLY,
    STATE_AWAITED,
    STATE_BRIDGED,
    STATE_DIFFERED,
    STATE_NOT_KNOWN,
    STATE_REFUSED,
    STATE_REPLACED,
    STEP_BEFORE_JOB,
    STEP_BEFORE_LOSS,
    STEP_NOT_REACHED,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.model_replica import Replica
from flowcheck.stages.job_state.anchor_log import AnchorRecord, anchor_record_of
from flowcheck.stages.job_state.assumptions import add_assumption
from flowcheck.stages.job_state.given_checkpoint_request import (
    clear_request,
    read_sections,
    refuse_request,
)
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation, incarnation_of
from flowcheck.stages.job_state.lifecycle_record_schema import CheckpointRequest
from flowcheck.stages.job_state.lifecycle_writers import UpdateLifecycle
from flowcheck.stages.replica_update.gradient_logs import AppliedGradientLog
from flowcheck.stages.replica_update.gradient_sources.gradient_source import GradientSource
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.run_directory.bounded_log_files import append_line
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration, Step

LINES_BYTES = 1 << 20
"""Bytes of anchors.jsonl; beyond them the newer half is kept. A choice: some thousand lines."""


class AnchorReplay:
    """The updater's part: takes a trainer checkpoint and replays the steps after it."""

    def __init__(self, run: RunDir, config: JobConfig, source: GradientSource, each: int) -> None:
        """each: all-reduced backward passes per step."""
        self._run, self._config, self._source, self._each = run, config, source, each
        self._kept = AppliedGradientLog(run, config, source.gradient_bytes)

    def keep_gradient(self, replica: Replica, iteration: Iteration, gradient: np.ndarray) -> bool:
        """Keeps a gradient for replay: one that was applied or, during a replay, one that will be.
        False: there is no room."""
        if not self._kept.is_enabled:
            return False
        followed = incarnation_of(self._run)
        wanted = followed.iteration_of(replica.step, self._each) + 1
        return self._kept.keep(iteration, gradient, wanted=wanted)

    def next_replay_step(
        self, replica: Replica, followed: Incarnation
    ) -> tuple[Step, np.ndarray] | None:
        """The next step to replay and the gradient of its iteration; None: the replay is
        complete."""
        if followed.anchored is None or replica.step < followed.anchored:
            return None  # behind for another reason: its job came back from an older step
        iteration = followed.iteration_of(Step(replica.step + 1), self._each)
        if iteration > self._source.applied_iteration:
            return None
        gradient = self._kept.gradient_of(iteration)
        return None if gradient is None else (Step(replica.step + 1), gradient)

    def forget_after(self, iteration: Iteration) -> None:
        """Drops gradients of later iterations: the job continues from this one, and uses their
        numbers again for other gradients."""
        self._kept.forget_after(iteration)

    def kept_gradient(self, iteration: Iteration) -> np.ndarray | None:
        """The gradient of an iteration; None where it is not kept."""
        return self._kept.gradient_of(iteration)

    def apply_anchor(
        self,
        replica: Replica,
        records: StepLog,
        lifecycle: UpdateLifecycle,
        request: CheckpointRequest,
        say: Callable[[Finding], None],
        *,
        gathered: bool,
        waits: bool,
        logged: frozenset[int],
    ) -> None:
        """Takes the checkpoint that was given, or reports why not.

        say: tells the operator, again if a kill makes it run again; gathered: parameters are
        followed as they are sent; waits: steps of the job are logged; logged: which iterations.
        """
        step, source = request.step, request.source
        lacking = incarnation_of(self._run).lacking
        waits = waits and lacking is None  # else a checkpoint is what it waits for
        at = replica.step if waits else self.last_step(replica)
        why = PARAMETERS_ONLY() if gathered else STATE_NOT_KNOWN() if waits else None
        kept = self._kept.iterations if lacking is None else logged
        why = why or self._why_not(replica, step, lacking, kept)
        followed = None
        if why is None:
            followed, why = self._put(replica, records, request)
        line = AnchorRecord(step=step, file=source, request=request.id, at=at, refused=why)
        told = partial(append_line, self._run.anchors, msgspec.json.encode(line), LINES_BYTES)
        written = anchor_record_of(self._run, request.id) is not None
        written = written or records.unwritten.attempt(told, lines=0)
        if why is not None:
            say(STATE_REFUSED(file=source, reason=why))
            refuse_request(lifecycle, request, Step(at), why)
        else:
            told_of = STATE_REPLACED if lacking is None else STATE_BRIDGED
            say(told_of(step=step, file=source, again=at - step))
            lifecycle.answer(request, Step(at), incarnation=followed)
            clear_request(self._run, request)
        if not written:
            records.unwritten.attempt(told)  # that the file is gone may have made room

    def last_step(self, replica: Replica) -> Step:
        """The last step that was applied, to whatever state, or logged. The replica is behind it
        where a checkpoint replaced an earlier step, or is waited for."""
        followed = incarnation_of(self._run)
        ahead = self._source.applied_iteration - followed.iteration_of(replica.step, self._each)
        return Step(replica.step + max(0, ahead // self._each))

    def _why_not(
        self, replica: Replica, step: Step, lacking: Step | None, kept: frozenset[int]
    ) -> Finding | None:
        """Why the checkpoint cannot be taken; None: it can. Checked before anything changes, or
        again after a kill in the middle. lacking: as Incarnation has it; kept: iterations whose
        gradients can be applied on it."""
        followed = incarnation_of(self._run)
        assert followed.step is not None and self._config.optimizer is not None
        reached = replica.step if lacking is None else self.last_step(replica)
        if step > reached:
            return STEP_NOT_REACHED(at=reached, step=step)
        if lacking is not None and step < lacking:
            return STEP_BEFORE_LOSS(step=step, lacking=lacking)
        if step < followed.step:
            return STEP_BEFORE_JOB(step=step, began=followed.step)
        last = self.last_step(replica)
        again = [followed.iteration_of(Step(n), self._each) for n in range(step + 1, last + 1)]
        if again and self._config.optimizer.clip_together:
            return NORMS_NOT_KEPT()
        if not kept.issuperset(again):
            return GRADIENTS_NOT_KEPT(step=last, first=step + 1, last=last)
        return None

    def _put(
        self, replica: Replica, records: StepLog, request: CheckpointRequest
    ) -> tuple[Incarnation | None, Finding | None]:
        """Makes the checkpoint the replica's step. Returns the changed incarnation, or why it was
        refused."""
        step, source = request.step, request.source
        try:
            replica.rebase(step, read_sections(self._run, request), replays=True)
        except StateError as error:
            return None, error.finding
        records.forget_after(Step(step - 1), f"before-{Path(source).name}-{step}")
        records.write(replica, 0.0, None)
        lines = self._run.audits.read_bytes().count(b"\n") if self._run.audits.exists() else 0
        known = incarnation_of(self._run)
        rests = STATE_DIFFERED if known.lacking is None else STATE_AWAITED
        add_assumption(self._run, rests(step=step, file=source))
        followed = msgspec.structs.replace(
            known, anchored=step, audits=lines, last_lacking=msgspec.UNSET
        )
        return followed, None

    def close(self) -> None:
        self._kept.close()
