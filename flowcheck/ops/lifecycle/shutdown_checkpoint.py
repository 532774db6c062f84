"""Writes the replica as a checkpoint after its chain has ended, in this process or in the
updater's, which has torch loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flowcheck.config import JobConfig
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.training_facts import known_training
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor.checkpoint_helper import (
    CheckpointHelper,
    CheckpointRequest,
    HelperGone,
    serve_checkpoints,
)
from flowcheck.step_numbers import Step

Save = Callable[[JobConfig, RunDir, Path, Step | None], Path | None]


def save_checkpoint(
    config: JobConfig, run: RunDir, directory: Path, step: Step | None = None
) -> Path | None:
    """Writes the replica's last committed step; None if there is no replica yet. step: an older one
    that it holds instead, to which it goes back."""
    if not run.replica.exists():
        return None
    from flowcheck.replica.checkpoint import checkpoint_save
    from flowcheck.replica.model_replica import Replica
    from flowcheck.stages.job_state.model_layout import optimizer_in

    evidence = known_training(run).evidence
    replica = Replica.open(run.replica, optimizer_in(run))
    try:
        if step is not None:
            replica.go_back(step)
        return checkpoint_save.save(
            replica, directory, evidence=evidence, assumed=assumptions_of(run)
        )
    finally:
        replica.close()


@contextmanager
def checkpoint_writer(helper: CheckpointHelper | None) -> Iterator[Save]:
    """Saves in the supervisor's checkpoint helper as long as that lives, else by
    `save_checkpoint`. Afterwards the helper is closed."""
    if helper is None:
        yield save_checkpoint
        return

    def save(config: JobConfig, run: RunDir, directory: Path, step: Step | None) -> Path | None:
        try:
            return helper.save(run.root, directory, step)
        except HelperGone:
            return save_checkpoint(config, run, directory, step)

    try:
        yield save
    finally:
        helper.close()


def run_checkpoint_helper(descriptor: int) -> None:
    """This process, whose stage has ended."""

    def save(wanted: CheckpointRequest) -> Path | None:
        run = RunDir(Path(wanted.run))
        return save_checkpoint(run.settings(), run, Path(wanted.directory), wanted.step)

    serve_checkpoints(descriptor, save)
