"""The kinds of gradient sources, and which one a run has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowcheck.config import OptimizerConfig
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.replica.state_file.file_header import peek_commit
from flowcheck.stages.job_state.training_facts import is_training_known
from flowcheck.stages.job_state.unused_parameters import UnusedParameterMap
from flowcheck.stages.replica_copies.copy_records import read_copy
from flowcheck.stages.replica_update.gradient_sources.gradient_source import (
    GradientSource,
    SourceProgress,
)
from flowcheck.stages.replica_update.gradient_sources.log_file_source import (
    has_log_record,
    log_progress,
    open_logs,
)
from flowcheck.stages.replica_update.gradient_sources.shard_source import (
    ShardSource,
    shard_progress,
)
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration
from flowcheck.wire.training_job.learned_job import FollowedData
from flowcheck.wire.training_job.training_spec import TrainingFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
    """What the updater knows about one kind of source. README.md says how to add one."""

    name: str
    is_there: Callable[[RunDir], bool]
    """Whether a run has one by now, and what must be known of its training job, so that it can
    be opened."""
    open: Callable[[RunDir, TrainingFacts, OptimizerConfig], GradientSource] | None
    """With what is known of the training job, and its optimizer; None: an updater of its own
    takes whole changes in place of gradients (stages/replica_copies)."""
    progress: Callable[[RunDir], SourceProgress | None]
    """How far a run's source is, without changing anything; None: it has no such source."""


def _open_shard(run: RunDir, training: TrainingFacts, optimizer: OptimizerConfig) -> GradientSource:
    taints = training.kind is FollowedData.GRADIENTS and optimizer.per_element
    apart = UnusedParameterMap(training, optimizer.synced_backwards).gradient_bytes
    return ShardSource(GradientShard.open(run.shard), taints=taints, apart_bytes=apart)


def _shard_progress(run: RunDir) -> SourceProgress | None:
    if not run.shard.exists():
        return None
    with GradientShard.open(run.shard) as shard:
        return shard_progress(shard)


def _copy_progress(run: RunDir) -> SourceProgress | None:
    """Of a copy, which is as far as its replica; what its chain has more of is not there yet."""
    record = read_copy(run)
    if record is None or not run.replica.exists():
        return None
    return SourceProgress(
        gradient_bytes=record.gradient_bytes,
        applied_iteration=Iteration(peek_commit(run.replica)[0].step),
        complete=record.lag_steps,
        next_is_complete=False,
        lost_iteration=None,
        next_covered_bytes=None,
        covered_bytes=record.received_bytes,
    )


SOURCE_KINDS = (
    SourceKind(
        name="chain",
        is_there=lambda run: read_copy(run) is not None and is_training_known(run),
        open=None,
        progress=_copy_progress,
    ),
    SourceKind(
        name="gradient_log",
        is_there=lambda run: has_log_record(run) and is_training_known(run),
        open=lambda run, training, optimizer: open_logs(run, training, optimizer.synced_backwards),
        progress=log_progress,
    ),
    SourceKind(
        name="shard",
        is_there=lambda run: run.learned_job.exists() and run.shard.exists(),
        open=_open_shard,
        progress=_shard_progress,
    ),
)
"""A run has the first that is there."""


def source_kind_of(run: RunDir) -> SourceKind | None:
    """The kind of source that a run has; None: it has none yet."""
    return next((kind for kind in SOURCE_KINDS if kind.is_there(run)), None)


def source_progress(run: RunDir) -> SourceProgress | None:
    """How far the source of a run is, for processes other than its updater; None: it has none yet.
    Raises RingError or StateError where it cannot be read."""
    found = (kind.progress(run) for kind in SOURCE_KINDS)
    return next((progress for progress in found if progress is not None), None)
