"""The extractor's files in shared memory: made under another name, so that they appear whole."""

from __future__ import annotations

from flowcheck.plane.flows import FlowTable
from flowcheck.plane.shard import Shard
from flowcheck.plane.staging import Staging
from flowcheck.stages.rundir import RunDir
from flowcheck.whole import growing
from flowcheck.wire.job import Job


def open_staging(run: RunDir, number: int, flows: FlowTable, size_bytes: int) -> Staging:
    """The staging file of one ring, made if it is not there."""
    path = run.staging(number)
    if path.exists():
        return Staging.open(path)
    with growing(path, durable=False) as place:
        return Staging.create(place, messages=flows.pool_records, data_bytes=size_bytes)


def create_shard(run: RunDir, job: Job) -> Shard:
    """A new shard for a job's gradients."""
    unit = min(parameter.element_bytes for parameter in job.reduced)
    with growing(run.shard, durable=False) as place:
        return Shard.create(place, gradient_bytes=job.gradient_bytes, unit_bytes=unit)
