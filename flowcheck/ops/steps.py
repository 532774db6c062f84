"""The step a verb speaks of: of a chain that runs, or of a checkpoint a chain left."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from flowcheck.config import JobConfig, decode_config
from flowcheck.errors import ConfigError, StateError
from flowcheck.plane.ring import Ring
from flowcheck.plane.shard import Shard
from flowcheck.replica import checkpoint, snapshot
from flowcheck.replica.snapshot import Snapshot
from flowcheck.stages.generations import Generations
from flowcheck.stages.rundir import RunDir
from flowcheck.wire.job import decode_job

SETTLE_S = 10.0
"""How long frames already captured may take to become a step."""
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Found:
    """A whole step and what it rests on."""

    snapshot: Snapshot
    names: tuple[str, ...]
    """The trainer's parameter names, where the job file states them."""
    assumed: tuple[str, ...]
    where: str


def config_of(run: RunDir) -> JobConfig:
    """The settings of a run. Raises ConfigError where none was started there."""
    if not run.config.exists():
        raise ConfigError("run", str(run.root), "no chain was started there: flowcheck up JOB.toml")
    return decode_config(run.config.read_bytes())


def newest(run: RunDir, *, settle: bool) -> Found:
    """The newest step of a run: of its replica, else of the checkpoint its job names.

    settle: first let frames that were captured already become steps, for SETTLE_S at most.
    Raises ConfigError without a run, StateError without a step.
    """
    config = config_of(run)
    if settle and run.stage_pids():
        _settle(run, config)
    if run.replica.exists() and config.optimizer is not None:
        job = decode_job(run.learned_job.read_bytes())
        taken = snapshot.of_state(run.replica, config.optimizer)
        return Found(taken, config.model.names, job.assumed, f"the replica of {run.root}")
    kept = _checkpoints(Path(config.checkpoint)) if config.checkpoint is not None else []
    if not kept:
        raise StateError(f"{run.root}: no step was taken there, and no checkpoint was written")
    return from_checkpoint(kept[-1])


def from_checkpoint(folder: Path) -> Found:
    """The step of a checkpoint folder. Raises StateError where it is not whole."""
    manifest = checkpoint.load_manifest(folder)
    own = tuple(p.name for p in manifest.layout.parameters)
    stated = own if own != tuple(f"param.{i}" for i in range(len(own))) else ()
    return Found(snapshot.of_checkpoint(folder), stated, manifest.assumed, str(folder))


def _checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, the newest step last."""
    found = [p for p in folder.glob("step-*") if p.name.removeprefix("step-").isdigit()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def _settle(run: RunDir, config: JobConfig) -> None:
    deadline_s = time.monotonic() + SETTLE_S
    quiet = 0  # looks in a row: between two stages a frame is in no ring and no step is whole yet
    while quiet < 3 and time.monotonic() < deadline_s:
        quiet = quiet + 1 if _quiet(run, config) else 0
        Event().wait(LOOK_S)


def _quiet(run: RunDir, config: JobConfig) -> bool:
    """No frame waits in a ring and no whole step for the updater."""
    for number in range(len(config.rings)):
        with Ring.open(run.ring(number)) as ring:
            if ring.head != ring.tail:
                return False
    if not run.shard.exists():
        return True
    with Shard.open(run.shard) as shard:
        return not Generations(shard).waiting
