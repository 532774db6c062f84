"""The shard for a job's gradients: made as soon as its size is known, taken once the job is
followed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flowcheck.atomic_write import atomic_path
from flowcheck.errors import RingError
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.plane.shared_memory.shard_size import ShardSize
from flowcheck.stages.job_learning.proved_job import shard_size_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.learn.jobs.held import without_held
from flowcheck.wire.training_job.learned_job import LearnedJob


def open_or_create_shard(
    run: RunDir, job: LearnedJob, shard: GradientShard | None
) -> tuple[GradientShard, LearnedJob]:
    """(the shard for the job's gradients, the job as far as the shard has room for it). shard: of
    an earlier incarnation; None: there is none yet."""
    if shard is None:
        shard = _taken(run, shard_size_of(job))
    return shard, job if shard.module_buffer_bytes == job.module_buffer_bytes else without_held(job)


def prepare_shard(run: RunDir, size: ShardSize) -> None:
    """Makes a shard of that size where a reading leaves it, unless there is one: its pages are
    zeroed, so it takes the longer the larger the model is. Without room nothing is made: the stage
    is to meet that."""
    place = run.read_shard(size)
    if run.shard.exists() or place.exists():
        return
    run.remove_read_shards()  # of another size: the room is needed
    with suppress(RingError, OSError), atomic_path(place, durable=False) as being_made:
        _created(being_made, size).close()


def _taken(run: RunDir, size: ShardSize) -> GradientShard:
    """The shard that a reading made, or a new one. Raises RingError without room."""
    prepared = run.read_shard(size)
    if prepared.exists():
        prepared.replace(run.shard)
        shard = GradientShard.open(run.shard)
    else:
        run.remove_read_shards()  # of another size: the room is needed
        with atomic_path(run.shard, durable=False) as place:
            shard = _created(place, size)
    run.remove_read_shards()
    return shard


def _created(place: Path, size: ShardSize) -> GradientShard:
    return GradientShard.create(
        place,
        gradient_bytes=size.gradient_bytes,
        unit_bytes=size.unit_bytes,
        held_bytes=size.module_buffer_bytes,
    )
