"""A replica as a checkpoint once its chain has ended: written here, or by the updater's process,
which has torch loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flowcheck.config import JobConfig
from flowcheck.stages.chain.lent import Gone, Lender, Wanted, lend
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.assumed import assumed
from flowcheck.step_numbers import Step
from flowcheck.wire.job_file import decode_job

Save = Callable[[JobConfig, RunDir, Path, Step | None], Path | None]


def save_checkpoint(
    config: JobConfig, run: RunDir, directory: Path, step: Step | None = None
) -> Path | None:
    """Writes the replica's last committed step; None if there is no replica yet. step: an older one
    that it holds instead, to which it goes back."""
    if not run.replica.exists():
        return None
    from flowcheck.replica import checkpoint
    from flowcheck.replica.replica import Replica
    from flowcheck.stages.updating.model import optimizer_in

    evidence = decode_job(run.learned_job.read_bytes()).evidence
    replica = Replica.open(run.replica, optimizer_in(run))
    try:
        if step is not None:
            replica.go_back(step)
        return checkpoint.save(replica, directory, evidence=evidence, assumed=assumed(run))
    finally:
        replica.close()


@contextmanager
def saving(lender: Lender | None) -> Iterator[Save]:
    """`save_checkpoint`, as long as it lives in the process that is lent; it is let go behind."""
    if lender is None:
        yield save_checkpoint
        return

    def save(config: JobConfig, run: RunDir, directory: Path, step: Step | None) -> Path | None:
        try:
            return lender.save(run.root, directory, step)
        except Gone:
            return save_checkpoint(config, run, directory, step)

    try:
        yield save
    finally:
        lender.close()


def lend_this(descriptor: int) -> None:
    """This process, whose stage has ended."""

    def save(wanted: Wanted) -> Path | None:
        run = RunDir(Path(wanted.run))
        return save_checkpoint(run.settings(), run, Path(wanted.directory), wanted.step)

    lend(descriptor, save)
