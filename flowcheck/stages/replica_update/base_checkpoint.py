"""A base: the trainer checkpoint that a job with unknown optimizer state waits for.

A base holds the state at the step the job began with. Its parameters were compared with the
start-up broadcast and are equal (ops/trainer_checkpoint). For a job joined midstream it is the
state at any step that the job took, or was about to take, since then. A kill may make the updater
take it again: the answer in the lifecycle record, which names the step, is written last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.job_restarts import (
    BASE_TAKEN,
    LOG_BEGUN_ANEW,
    LOG_FULL,
    NOT_LOGGED_ANY_MORE,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.model_replica import Replica
from flowcheck.stages.job_state.given_checkpoint_request import (
    clear_request,
    read_sections,
    refuse_request,
)
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation, incarnation_of
from flowcheck.stages.job_state.lifecycle_record_schema import CheckpointRequest
from flowcheck.stages.job_state.lifecycle_writers import UpdateLifecycle
from flowcheck.stages.replica_update.gradient_logs import open_gradient_log
from flowcheck.stages.replica_update.gradient_sources.gradient_source import ArrivedGradient
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration, Step
from flowcheck.wire.traffic.observed_messages import Range


class Logged(NamedTuple):
    """An iteration in the log."""

    iteration: Iteration
    gradient: np.ndarray
    """[gradient bytes]"""
    lacks: Sequence[Range]
    """Byte ranges of it that never came."""


class BaseWait:
    """The updater's gradient log, and how a base ends the wait for the optimizer state."""

    def __init__(self, run: RunDir, config: JobConfig, gradient_bytes: int) -> None:
        self._run = run
        self._log = open_gradient_log(run, config, gradient_bytes, writes=True)

    def log_gradient(self, arrived: ArrivedGradient, *, any_base: bool) -> Finding | None:
        """Logs a gradient that cannot be applied yet, with what it lacks. Returns a finding for the
        operator where logging ends here or begins again. any_base: the state of any step will do,
        if the log holds the steps after it."""
        iteration, given = arrived.iteration, (arrived.data, arrived.unbelieved)
        held = self._log.iterations
        if (held and iteration <= held[-1]) or self._log.closed:
            return None  # a kill came between this and the release of the generation
        if self._log.append(iteration, *given):
            return None
        if any_base and held:
            self._log.remove()
            if self._log.append(iteration, *given):
                return LOG_BEGUN_ANEW(len(held))
        return LOG_FULL(len(held))

    def apply_base(
        self,
        replica: Replica,
        request: CheckpointRequest,
        sections: dict[str, np.ndarray],
        *,
        joined: bool,
        released: Iteration,
    ) -> tuple[Incarnation, Finding]:
        """Makes the base the replica's only step. Returns the incarnation from now on, and a
        finding for the operator. joined, released: as of `settle`. Raises StateError where the base
        does not fit the replica, or the log does not begin right behind it."""
        step, after = request.step, request.after
        known = incarnation_of(self._run)
        first = Iteration(known.iterations + after + 1)
        if joined and first <= released and not self.closed and first not in self._log.iterations:
            raise StateError(NOT_LOGGED_ANY_MORE(after))
        replica.rebase(step, sections, replays=False)
        audits = self._run.audits.read_bytes().count(b"\n") if self._run.audits.exists() else 0
        followed = msgspec.structs.replace(known, step=step - after, base=step, audits=audits)
        left = sum(iteration > known.iterations + after for iteration in self._log.iterations)
        return followed, BASE_TAKEN(file=request.source, step=step, logged=left)

    def settle(
        self,
        replica: Replica,
        records: StepLog,
        lifecycle: UpdateLifecycle,
        request: CheckpointRequest,
        say: Callable[[Finding], None],
        *,
        joined: bool,
        released: Iteration,
    ) -> None:
        """Ends the wait with the base that was given, or reports why not.

        say: tells the operator, again if a kill makes it run again; joined: the job was joined
        midstream, so that no start-up broadcast shows the base's parameters; released: the last
        iteration that was logged or passed.
        """
        given = replica, request, read_sections(self._run, request)
        try:
            followed, found = self.apply_base(*given, joined=joined, released=released)
        except StateError as error:
            say(error.finding)
            refuse_request(lifecycle, request, replica.step, error.finding)
            return
        records.forget_after(Step(replica.step - 1), followed.number)
        if not joined:
            records.record_broadcast_audit(replica.step, followed.number)
        records.write(replica, 0.0, None)
        say(found)
        lifecycle.answer(request, replica.step, incarnation=followed)
        clear_request(self._run, request)

    def first_logged_after(self, iteration: Iteration) -> Logged | None:
        """The first that is logged after `iteration`; None if there is none."""
        for index, held in enumerate(self._log.iterations):
            if held > iteration:
                return Logged(held, self._log.read(index), self._log.lacks(index))
        return None

    def logged_gradient(self, iteration: Iteration) -> np.ndarray | None:
        """The gradient of one logged iteration."""
        held = self._log.iterations
        return self._log.read(held.index(iteration)) if iteration in held else None

    @property
    def iterations(self) -> frozenset[int]:
        """Those that are logged."""
        return frozenset(self._log.iterations)

    @property
    def was_used(self) -> bool:
        """Whether something was logged, or found no room."""
        return bool(self._log.iterations) or self._log.closed

    @property
    def full(self) -> bool:
        return self._log.full

    @property
    def closed(self) -> bool:
        return self._log.closed

    def empty_log(self) -> None:
        """Empties the log: all of it was applied, or belongs to a job that is over."""
        self._log.remove()

    def close(self) -> None:
        self._log.close()
