"""The extractor's files in shared memory: made under another name, so that they appear whole."""

from __future__ import annotations

from flowcheck.plane.flows import FlowTable
from flowcheck.plane.shard import Shard
from flowcheck.plane.staging import Staging
from flowcheck.stages.rundir import RunDir
from flowcheck.whole import growing
from flowcheck.wire.job import Job
from flowcheck.wire.learn.jobs.held import without_held


def open_staging(run: RunDir, number: int, flows: FlowTable, size_bytes: int) -> Staging:
    """The staging file of one ring, made if it is not there."""
    path = run.staging(number)
    if path.exists():
        return Staging.open(path)
    with growing(path, durable=False) as place:
        return Staging.create(place, messages=flows.pool_records, data_bytes=size_bytes)


def shard_for(run: RunDir, job: Job, shard: Shard | None) -> tuple[Shard, Job]:
    """(one for the job's gradients, the job as far as it has room there). shard: of an earlier
    life; None: there is none yet."""
    if shard is None:
        shard = _created(run, job)
    return shard, job if shard.held_bytes == job.held_bytes else without_held(job)


def _created(run: RunDir, job: Job) -> Shard:
    unit = min(parameter.element_bytes for parameter in job.reduced)
    with growing(run.shard, durable=False) as place:
        return Shard.create(
            place,
            gradient_bytes=job.gradient_bytes,
            unit_bytes=unit,
            held_bytes=job.held_bytes,
        )
