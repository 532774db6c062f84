"""A restarted job's initial weights compared with the replica (updater side of the handover).

Everything here may be done again after a kill: the verdict in the updater's part of the lifecycle
record, written last, commits it.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.job_restarts import (
    ELEMENTS_HEALED,
    ELEMENTS_STAY_TAINTED,
    NOT_FOLLOWED,
    OTHER_KIND,
    OTHER_PARAMETERS,
    OTHERWISE_USED,
    REJOINED_AFTER_GAP,
    REPLICA_KEPT,
    START_NEVER_SENT,
    WAITS_FOR_BASE,
    WAITS_FOR_TWO_CHECKPOINTS,
    WEIGHTS_OF_NO_STEP,
    WENT_BACK,
    WENT_ON,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.element_ranges import Ranges, count_elements
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.taint import missing_of_weights, tainted_elements
from flowcheck.stages.job_state.gathered_parameters import parameter_placement
from flowcheck.stages.job_state.heal_log import HealRecord
from flowcheck.stages.job_state.lifecycle_record_schema import RestartVerdict
from flowcheck.stages.job_state.lifecycle_writers import UpdateLifecycle
from flowcheck.stages.job_state.model_layout import layout_of
from flowcheck.stages.job_state.training_facts import known_training
from flowcheck.stages.replica_update.anchor_replay import AnchorReplay
from flowcheck.stages.replica_update.gradient_sources.gradient_source import GradientSource
from flowcheck.stages.replica_update.healing import record_heal
from flowcheck.stages.replica_update.model_buffers import store_broadcast_buffers
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration, Step
from flowcheck.wire.training_job.learned_job import FollowedData, decode_job


class _Comparison(NamedTuple):
    """What a later incarnation's initial weights show."""

    step: Step | None
    """The step that it went on from; None: no step matches."""
    why: Finding | None
    """Why no step matches."""
    waits: bool = False
    """Whether a base would help."""
    weights: np.ndarray | None = None
    """The initial weights as the replica's parameters, where there is a step."""
    missing: Ranges | None = None
    """Elements of them that never came."""


class Handover:
    """Compares a successor's initial weights with the replica's whole versions, by bytes. Tainted
    elements of a version are not compared: they take the successor's parameters."""

    def __init__(self, run: RunDir, config: JobConfig, lifecycle: UpdateLifecycle) -> None:
        self._run, self._config, self._lifecycle = run, config, lifecycle

    @property
    def verdict_due(self) -> bool:
        """Whether a later incarnation waits for the verdict."""
        record = self._lifecycle.record()
        return record.extract.offered is not None and record.verdict is None

    @property
    def _offered(self) -> Path:
        """The folder with the files of the later incarnation."""
        offered = self._lifecycle.record().extract.offered
        assert offered is not None
        return self._run.learned_folder / offered.folder

    def write_verdict(
        self,
        replica: Replica,
        source: GradientSource,
        records: StepLog,
        anchors: AnchorReplay,
        iterations: int,
    ) -> Finding:
        """Writes the verdict; sets replica, source and records to the step that it names. Returns
        findings for the operator. iterations: per step of the trainer.

        A kill before the replica has gone back undoes everything: an updater that starts sets the
        source's position by the replica (UpdateService), and forgets the same gradients again.
        After that one store, everything has happened.
        """
        followed = self._lifecycle.record().incarnation
        number = followed.number
        step, why, waits, weights, missing = self._compared(replica)
        if step is None or weights is None:
            assert why is not None
            return self._unknown(replica, source, anchors, iterations, why, waits=waits)
        newest = replica.step
        if followed.step is not None:
            self._hand_over(source, anchors, followed.iteration_of(step, iterations))
        replica.go_back(step)
        tainted = tainted_elements(replica.tainted)
        records.record_broadcast_audit(step, number + 1, tainted_elements=tainted)
        # The line of a step that changes goes first: it is written anew even behind a kill.
        records.forget_after(Step(step - 1) if tainted else step, number)
        healed = 0
        if tainted:
            healed = self._take_weights(replica, records, (weights, missing), number + 1)
        if records.last_step() < step:
            records.write(replica, 0.0, None)
        successor = self._offered
        job = decode_job((successor / self._run.learned_job.name).read_bytes())
        sent = successor / self._run.auxiliary_weights.name
        store_broadcast_buffers(self._run, self._config, job, sent, step=step)
        verdict = RestartVerdict(number=number, step=step, iterations=source.applied_iteration)
        self._lifecycle.write_verdict(verdict)
        what = WENT_ON(number=number + 1, step=step)
        if newest > step:
            what = WENT_BACK(number=number + 1, step=step, newest=newest)
        if not tainted:
            return what
        return (ELEMENTS_HEALED if healed else ELEMENTS_STAY_TAINTED)(what=what, elements=tainted)

    def _take_weights(
        self,
        replica: Replica,
        records: StepLog,
        weights: tuple[np.ndarray, Ranges | None],
        number: int,
    ) -> int:
        """The replica's tainted elements take the parameters that incarnation `number` began with,
        but for those that never came of it. weights: as of `Replica.take_weights`. Returns how many
        are exact since. A kill behind this makes it run again, or leaves nothing that it would
        heal."""
        healed = count_elements(replica.take_weights(*weights))
        if healed:
            record_heal(
                self._run,
                records,
                HealRecord(
                    time_ns=time.time_ns(),
                    step=replica.step,
                    source=f"the start-up broadcast of incarnation {number}",
                    request=f"incarnation-{number}",
                    at=replica.step,
                    elements=healed,
                ),
            )
        return healed

    def _hand_over(
        self, source: GradientSource, anchors: AnchorReplay, iteration: Iteration
    ) -> None:
        """Drops what was kept after this iteration: the job sends other gradients for those
        numbers."""
        anchors.forget_after(iteration)
        source.rewind(iteration)

    def _unknown(
        self,
        replica: Replica,
        source: GradientSource,
        anchors: AnchorReplay,
        iterations: int,
        why: Finding,
        *,
        waits: bool,
    ) -> Finding:
        """The verdict where no step matches: the job waits for a base, or is not followed."""
        followed = self._lifecycle.record().incarnation
        # While its state is not known either, it is that of a past which was kept already.
        kept = self._set_aside(replica) if followed.step is not None else None
        if waits and followed.step is not None:
            self._hand_over(source, anchors, followed.iteration_of(replica.step, iterations))
        if waits and why.is_any_of(REJOINED_AFTER_GAP):
            what = WAITS_FOR_TWO_CHECKPOINTS(why)
        else:
            what = WAITS_FOR_BASE(why) if waits else NOT_FOLLOWED(why)
        if kept is not None:
            what = REPLICA_KEPT(what=what, step=replica.step, folder=kept)
        verdict = RestartVerdict(
            number=followed.number,
            step=None,
            iterations=source.applied_iteration,
            why=what,
            waits=waits,
        )
        self._lifecycle.write_verdict(verdict)
        return what

    def _compared(self, replica: Replica) -> _Comparison:
        """The step whose parameters the later incarnation began with."""
        folder = self._offered
        job = decode_job((folder / self._run.learned_job.name).read_bytes())
        known = known_training(self._run)
        if job.kind is not known.kind:
            return _Comparison(None, OTHER_KIND())
        gathered = None
        try:
            if job.kind is FollowedData.PARAMETERS:
                gathered, _ = parameter_placement(self._run, job, self._config)
            layout = layout_of(job, self._config) if gathered is None else gathered.layout
        except StateError as error:
            return _Comparison(None, error.finding)
        if layout != replica.layout:
            return _Comparison(None, OTHER_PARAMETERS())
        if (job.has_usage_map, job.unused_parameters, job.padding) != (
            known.has_usage_map,
            known.unused_parameters,
            known.padding,
        ):
            return _Comparison(None, OTHERWISE_USED())
        if job.awaits_base:
            why = REJOINED_AFTER_GAP if job.midstream else START_NEVER_SENT
            return _Comparison(None, why(), waits=True)
        weights = np.fromfile(folder / self._run.weights.name, np.uint8)
        if gathered is not None:
            weights = gathered.parameters(weights)
        weights = layout.memory_order(weights.view(layout.numpy_dtype))
        missing = missing_of_weights(layout, job.weights_missing)
        step = replica.step_of_weights(weights, missing)
        if step is not None:
            return _Comparison(step, None, weights=weights, missing=missing)
        return _Comparison(None, WEIGHTS_OF_NO_STEP(replica.versions), waits=gathered is None)

    def _set_aside(self, replica: Replica) -> str:
        """Writes a checkpoint of the replica to the run directory; overwrites nothing there."""
        for attempt in itertools.count(1):
            folder = self._run.root / f"kept-{attempt}"
            try:
                return str(checkpoint_save.save(replica, folder))
            except StateError:
                if not (folder / f"step-{replica.step}").exists():
                    raise
        raise AssertionError("count() never ends")
