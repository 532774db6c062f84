"""The step a verb speaks of: of a chain that runs, or of a checkpoint a chain left."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.plane.ring import Ring
from flowcheck.plane.shard import GENERATIONS, Shard
from flowcheck.plane.staging import Staging
from flowcheck.replica import checkpoint
from flowcheck.replica.files.manifest import load_manifest
from flowcheck.replica.kept import snapshot
from flowcheck.replica.kept.snapshot import Snapshot
from flowcheck.replica.layout import Layout
from flowcheck.stages.assumed import assumed
from flowcheck.stages.generations import Generations
from flowcheck.stages.incarnation import incarnation_of
from flowcheck.stages.model import optimizer_in
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.unlearned import reasons

CALM_S = 1.0
"""Nothing moves for so long: what was captured has become steps, as far as it can."""
READING_S = 60.0
"""The same while staged messages wait to be read: a reading moves nothing that can be seen."""
UPDATE_S = 60.0
"""A whole step the updater has begun may take so long without a sign of life."""
ARRIVING_S = 5.0
"""Frames that come for so long without a pause: the job runs, and will not settle."""
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Found:
    """A whole step and what it rests on."""

    snapshot: Snapshot
    names: tuple[str, ...]
    """The trainer's parameter names, where the job file states them."""
    assumed: tuple[str, ...]
    where: str


def newest(run: RunDir, *, settle: bool) -> Found:
    """The newest step of a run: of its replica, else of the checkpoint its job names.

    settle: first let frames that were captured already become steps, as long as anything moves;
    of a job that goes on sending, the newest step there is.
    Raises ConfigError without a run, StateError without a step.
    """
    config = run.settings()
    if settle and run.stage_pids():
        _settle(run, config)
    if run.replica.exists():
        taken = snapshot.of_state(run.replica, optimizer_in(run))
        if taken.step == 0 and incarnation_of(run).step is None:
            raise StateError(
                f"{run.root}: the optimizer's state is not known yet: flowcheck base FILE gives it"
            )
        names = stated_names(taken.layout)
        return Found(taken, names, assumed(run), f"the replica of {run.root}")
    kept = _checkpoints(Path(config.checkpoint)) if config.checkpoint is not None else []
    if not kept:
        why = f" ({'; '.join(told)})" if (told := reasons(run)) else ""
        raise StateError(f"{run.root}: no step was taken there, and no checkpoint was written{why}")
    return from_checkpoint(kept[-1])


def from_checkpoint(folder: Path) -> Found:
    """The step of a checkpoint folder. Raises StateError where it is not whole."""
    manifest = load_manifest(folder)
    taken = checkpoint.snapshot_of(folder)
    return Found(taken, stated_names(taken.layout), manifest.assumed, str(folder))


def stated_names(layout: Layout) -> tuple[str, ...]:
    """The trainer's parameter names, registration order; empty where nobody stated them."""
    own = tuple(p.name for p in layout.parameters)
    return own if own != tuple(f"param.{i}" for i in range(len(own))) else ()


def _checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, the newest step last."""
    found = [p for p in folder.glob("step-*") if p.name.removeprefix("step-").isdigit()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


@dataclass(frozen=True, slots=True)
class _Positions:
    """Whatever moves while frames become steps."""

    heads: int
    tails: int
    staged: int
    covered_bytes: int
    applied: int
    whole: bool
    """A whole step waits for the updater."""
    unread: bool
    """Staged messages wait for a reading."""

    @property
    def patience_s(self) -> float:
        """How long all this may stand still before nothing more is to be expected."""
        if self.whole or self.heads != self.tails:
            return UPDATE_S
        return READING_S if self.unread else CALM_S


def _settle(run: RunDir, config: JobConfig) -> None:
    """Raises StateError where whole steps wait and the updater does not take them."""
    last = _positions(run, config)
    moved_s = arrived_s = since_s = time.monotonic()
    while time.monotonic() - moved_s < last.patience_s:
        Event().wait(LOOK_S)
        now, now_s = _positions(run, config), time.monotonic()
        if now.heads != last.heads:
            since_s = now_s if now_s - arrived_s > CALM_S else since_s
            arrived_s = now_s
            if now_s - since_s > ARRIVING_S:
                return
        if now != last:
            last, moved_s = now, now_s
    if last.whole or last.heads != last.tails:
        raise StateError(
            f"{run.root}: frames or whole steps have waited {UPDATE_S:.0f} s and nobody takes "
            "them: see flowcheck status, and the logs there"
        )


def _positions(run: RunDir, config: JobConfig) -> _Positions:
    heads = tails = staged = covered = applied = 0
    for number in range(len(config.rings)):
        with Ring.open(run.ring(number), reader=run.reader) as ring:
            heads, tails = heads + ring.head, tails + ring.tail
        if run.staging(number).exists():
            with Staging.open(run.staging(number)) as staging:
                staged += int(staging.handle.header.records_held)
    whole = False
    if run.shard.exists():
        with Shard.open(run.shard) as shard:
            whole = Generations(shard).waiting
            applied = shard.applied_step
            covered = sum(shard.covered_bytes(n) for n in range(GENERATIONS))
    return _Positions(heads, tails, staged, covered, applied, whole, run.unread.exists())
