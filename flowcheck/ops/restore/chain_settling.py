"""Waits until the frames that a running chain has captured have become steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Event

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.refused_restores import STEPS_WAITING
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.stages.replica_update.gradient_sources.source_registry import source_progress
from flowcheck.stages.run_directory.run_dir import RunDir

SETTLED_AFTER_S = 1.0
"""Seconds without progress after which a chain counts as settled: all captured frames have become
steps, if they can. A choice: longer delays each restore, shorter may give an older step on a busy
machine."""
SETTLED_WHILE_STAGED_S = 60.0
"""Seconds without progress after which a chain counts as settled while staged messages wait to be
read, since reading shows no progress. A choice: longer delays the restore, shorter may give an
older step."""
UPDATE_LIMIT_S = 60.0
"""Seconds without progress that the updater may take for a complete step. A choice: longer delays
the error of a dead updater, shorter fails for large models."""
ARRIVING_S = 5.0
"""Seconds of frames without a pause after which the job counts as running, so that the chain will
not settle. A choice: longer delays the answer, shorter misses the end of a job that is just
stopping."""
COMING_S = 30.0
"""Seconds of frames with pauses, as from a job whose steps take seconds, after which the job counts
as running. A choice: longer delays the answer, shorter misses the end of a job."""
LOOK_S = 0.05
"""Seconds between two checks of the chain's progress. A choice: shorter costs processor time."""


@dataclass(frozen=True, slots=True)
class _Positions:
    """Numbers that change while frames become steps."""

    heads: int
    tails: int
    staged: int
    covered_bytes: int
    applied: int
    whole: bool
    """Whether a complete step waits for the updater."""
    unread: bool
    """Whether staged messages wait to be read."""

    @property
    def settle_limit_s(self) -> float:
        """Seconds without change after which the chain counts as settled."""
        if self.whole or self.heads != self.tails:
            return UPDATE_LIMIT_S
        return SETTLED_WHILE_STAGED_S if self.unread else SETTLED_AFTER_S


def settle_chain(run: RunDir, config: JobConfig) -> None:
    """Waits until captured frames have become steps, or the job counts as running. Raises
    StateError if complete steps wait and the updater does not apply them."""
    last = _positions(run, config)
    began_s = moved_s = arrived_s = since_s = time.monotonic()
    while time.monotonic() - moved_s < last.settle_limit_s:
        Event().wait(LOOK_S)
        now, now_s = _positions(run, config), time.monotonic()
        if now.heads != last.heads:
            since_s = now_s if now_s - arrived_s > SETTLED_AFTER_S else since_s
            arrived_s = now_s
            if now_s - since_s > ARRIVING_S or now_s - began_s > COMING_S:
                return
        if now != last:
            last, moved_s = now, now_s
    if last.whole or last.heads != last.tails:
        raise StateError(STEPS_WAITING(run=run.root, seconds=UPDATE_LIMIT_S))


def _positions(run: RunDir, config: JobConfig) -> _Positions:
    heads = tails = staged = covered = applied = 0
    for number in range(len(config.rings)):
        with FrameRing.open(run.ring(number), reader=run.reader) as ring:
            heads, tails = heads + ring.head, tails + ring.tail
        if run.staging(number).exists():
            with Staging.open(run.staging(number)) as staging:
                staged += int(staging.handle.header.records_in_use)
    whole = False
    if (progress := source_progress(run)) is not None:
        whole, applied = progress.next_is_complete, progress.applied_iteration
        covered = progress.covered_bytes
    return _Positions(heads, tails, staged, covered, applied, whole, run.unread.exists())
