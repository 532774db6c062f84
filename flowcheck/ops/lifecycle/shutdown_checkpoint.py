"""Writes the replica as a checkpoint after its chain has ended: in this process, or in the
updater's process, which has torch loaded already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flowcheck.config import JobConfig
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.audit_history import doubts_of
from flowcheck.stages.job_state.training_facts import known_training
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor.checkpoint_helper import (
    CheckpointHelper,
    HelperGone,
    SaveRequest,
    serve_checkpoints,
)
from flowcheck.step_numbers import Step

SaveFunction = Callable[[JobConfig, RunDir, Path, Step | None], Path | None]


def save_checkpoint(
    config: JobConfig, run: RunDir, directory: Path, step: Step | None = None
) -> Path | None:
    """Writes the replica's last committed step into `directory`; returns the checkpoint's folder,
    None without a replica.

    step: an older step that the replica still has; the replica goes back to it first.

    Raises StateError or OSError where it cannot be written.
    """
    if not run.replica.exists():
        return None
    from flowcheck.replica.checkpoint import checkpoint_save
    from flowcheck.replica.model_replica import Replica
    from flowcheck.stages.job_state.model_layout import optimizer_of_run

    evidence = known_training(run).evidence
    replica = Replica.open(run.replica, optimizer_of_run(run))
    try:
        if step is not None:
            replica.go_back(step)
        basis = (*doubts_of(run, replica.step), *assumptions_of(run))
        return checkpoint_save.save(replica, directory, evidence=evidence, assumed=basis)
    finally:
        replica.close()


@contextmanager
def checkpoint_writer(helper: CheckpointHelper | None) -> Iterator[SaveFunction]:
    """Context manager that gives a save function: it uses the checkpoint helper while that lives,
    else `save_checkpoint` in this process. The helper is closed at the end."""
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
    """Serves save requests on a socket, in the process of a stage that has ended."""

    def save(wanted: SaveRequest) -> Path | None:
        run = RunDir(Path(wanted.run))
        return save_checkpoint(run.settings(), run, Path(wanted.directory), wanted.step)

    serve_checkpoints(descriptor, save)
