"""Finds the position in the gradient log at which a checkpoint was written, by replaying the
log up to a later checkpoint, bit for bit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.base_checkpoints import (
    LATER_FILE_NOT_LATER,
    NO_PLACE,
    SEVERAL_PLACES,
    TOO_FEW_STEPS_LOGGED,
)
from flowcheck.replica.checkpoint import step_snapshot
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.gradient_log import ByteRange
from flowcheck.replica.taint import tainted_elements
from flowcheck.stages.job_state.training_facts import known_training
from flowcheck.stages.job_state.unused_parameters import UnusedParameterMap
from flowcheck.stages.replica_update.gradient_logs import logged_steps, open_gradient_log
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.audit import bitwise_audit
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate

Sections = Mapping[str, np.ndarray]


class _TrialReplica:
    """A temporary replica, which steps as the updater's does."""

    def __init__(self, where: RunDir, config: JobConfig, layout: Layout, path: Path) -> None:
        assert config.optimizer is not None
        job = known_training(where)
        self._map = UnusedParameterMap(job, config.optimizer.synced_backwards)
        self._optimizer, self._path = config.optimizer, path
        self._replica = Replica.create(
            path,
            layout,
            config.optimizer,
            np.zeros(layout.elements, layout.numpy_dtype),
            may_skip_parameters=self._map.may_skip_parameters,
        )

    def reaches_checkpoint(
        self,
        base: tuple[Step, Sections],
        gradients: Iterable[tuple[np.ndarray, Sequence[ByteRange]]],
        later: CheckpointTemplate,
    ) -> bool:
        """Whether these gradients, applied in order to a state, lead to the checkpoint's state.
        Elements that lack bytes tell nothing, and most must tell. gradients: with what each
        lacks."""
        step, sections = base
        self._replica.rebase(step, sections, replays=False)
        for at, (whole, lacks) in enumerate(gradients, step + 1):
            gradient, used = self._map.split(whole)
            self._replica.apply(Step(at), gradient, used, lacks)
        snapshot = step_snapshot.copy_snapshot(self._path, self._optimizer)
        if 2 * tainted_elements(snapshot.tainted) > snapshot.layout.elements:
            return False
        found = bitwise_audit.audit_snapshot(later, snapshot)
        return found.passed and found.rounded_to is None  # rounded, several steps may be equal

    def close(self) -> None:
        self._replica.close()


def steps_until_checkpoint(
    where: RunDir,
    config: JobConfig,
    layout: Layout,
    base: tuple[Step, Sections],
    later: CheckpointTemplate,
) -> int:
    """How many steps the job took since it was joined until `base`, its own included, by the only
    place in the log from which its state becomes that of `later`.

    base: step and sections. Raises StateError where no place fits, or more than one.
    """
    step = base[0]
    count = later.step - step
    if count < 1:
        raise StateError(LATER_FILE_NOT_LATER(later=later.step, step=step))
    log = open_gradient_log(where, config, known_training(where).gradient_bytes)
    try:
        held = logged_steps(where, log)
        starts = [at - 1 for at in held if all(at + more in held for more in range(count))]
        if not starts:
            what = TOO_FEW_STEPS_LOGGED(logged=len(held), needed=count, step=step, later=later.step)
            raise StateError(what)
        with tempfile.TemporaryDirectory(dir=where.memory) as folder:
            trial = _TrialReplica(where, config, layout, Path(folder) / "trial")
            try:
                fits = []
                for at in starts:
                    logged = (held[at + n + 1] for n in range(count))
                    gradients = ((log.read(index), log.lacks(index)) for index in logged)
                    if trial.reaches_checkpoint(base, gradients, later):
                        fits.append(at)
            finally:
                trial.close()
    finally:
        log.close()
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise StateError(SEVERAL_PLACES(places=len(fits), step=step, later=later.step))
    raise StateError(NO_PLACE(step=step, later=later.step))
