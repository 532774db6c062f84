"""Whether a learned job's replica has room, with all that is kept beside it, before a byte of it is
taken. Its gradients in the making lie in the extractor's shard already."""

from __future__ import annotations

from flowcheck.config import JobConfig, OptimizerConfig
from flowcheck.replica.kept.header import COPIES_MAX
from flowcheck.replica.kept.peek import SPARE_COPIES
from flowcheck.replica.kept.sections import describe
from flowcheck.replica.kept.space import Space, check_space, space_of
from flowcheck.replica.layout import Layout
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.retaken import logs_bytes
from flowcheck.wire.job import Job

COPIES_LEAST = 2
"""The newest step, and the one being made."""


def check_needed(
    run: RunDir,
    config: JobConfig,
    job: Job,
    layout: Layout,
    optimizer: OptimizerConfig,
    *,
    leaves_out: bool,
) -> None:
    """Raises StateError, with the sum. leaves_out: as Replica.create takes it."""
    step = max(1, sum(s.size_bytes for s in describe(layout, optimizer, leaves_out)))
    copies = min(COPIES_MAX, COPIES_LEAST + config.replica.keep_bytes // step)
    logged = logs_bytes(config.gradient_log.taken_steps, job.gradient_bytes)
    needed, account = copies * step + logged, [f"{copies} steps of {step:,} bytes"]
    if logged:
        account.append(f"{logged:,} of gradients of taken steps")
    space = space_of(run.replica.parent)
    check_space(run.replica.parent, needed, " and ".join(account), space)
    read = {"saved": config.persist is not None, "served": config.serve is not None}
    readers = [word for word, asked in read.items() if asked and copies < SPARE_COPIES]
    if readers and space.memory is not None:
        # They copy into memory of their own, which the file system's bound is not of.
        account += [f"a copy of a step that is {word}, {step:,} bytes," for word in readers]
        whole = needed + len(readers) * step
        own = Space(max(space.file_system, whole), space.memory)
        check_space(run.replica.parent, whole, " and ".join(account), own)
