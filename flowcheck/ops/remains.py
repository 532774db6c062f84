"""What a chain leaves behind: its replica as a checkpoint, its processes, its shared memory."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

from flowcheck.config import JobConfig, decode_config
from flowcheck.errors import ConfigError, StateError
from flowcheck.plane.memory import SHM, huge_mounts
from flowcheck.stages.assumed import assumed
from flowcheck.stages.rundir import RunDir, remove_stale_memory
from flowcheck.wire.job import decode_job

DOWN_LIMIT_S = 10.0
LOOK_S = 0.05
FOLDERS_MAX = 100
"""Of killed chains that left other states of the same step."""


def save_checkpoint(config: JobConfig, run: RunDir, directory: Path) -> Path | None:
    """Writes the replica's last committed step; None if there is no replica yet."""
    from flowcheck.replica import checkpoint
    from flowcheck.replica.replica import Replica

    if not run.replica.exists() or config.optimizer is None:
        return None
    evidence = decode_job(run.learned_job.read_bytes()).evidence
    replica = Replica.open(run.replica, config.optimizer)
    try:
        return checkpoint.save(replica, directory, evidence=evidence, assumed=assumed(run))
    finally:
        replica.close()


def rescue(run: RunDir) -> str | None:
    """Keeps the replica of a chain whose supervisor was killed, before its place is taken; what was
    done, as a sentence. None where nothing of the kind is there, or the chain lives.

    Raises ConfigError where stages of it do not end with their supervisor.
    """
    if not run.config.exists() or not run.replica.exists() or "supervisor" in run.stage_pids():
        return None
    deadline_s = time.monotonic() + DOWN_LIMIT_S
    while left := run.stage_pids():  # they end with their supervisor, after the step in hand
        if time.monotonic() > deadline_s:
            raise ConfigError(
                "run",
                str(run.root),
                f"{', '.join(left)} still run: flowcheck down --run {run.root}",
            )
        Event().wait(LOOK_S)
    config = decode_config(run.config.read_bytes())
    saved = _save_anywhere(config, run)
    return (
        f"the chain that ran in {run.root} was killed; its replica is kept in {saved}, "
        "and this one begins anew"
    )


def _save_anywhere(config: JobConfig, run: RunDir) -> Path | None:
    """A checkpoint where the job wants it, else in a folder that holds no other run's step."""
    wanted = [Path(config.checkpoint)] if config.checkpoint is not None else []
    others = (run.root / f"rescued{n or ''}" for n in range(FOLDERS_MAX))
    for directory in (*wanted, *others):
        try:
            return save_checkpoint(config, run, directory)
        except StateError as error:
            refused = error
    raise refused


@contextmanager
def finished_first() -> Iterator[None]:
    """A signal that would end the process waits until what is inside is done."""
    ending = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def down(root: Path, *, as_json: bool) -> int:
    """`flowcheck down`: ends what runs there, removes what it left, and the shared memory of any
    chain whose supervisor was killed."""
    run = RunDir(root)
    pids = run.stage_pids()
    _end([pids[name] for name in pids if name == "supervisor"], signal.SIGTERM)
    _end(list(run.stage_pids().values()), signal.SIGKILL)
    there = (root / "memory").is_symlink()
    run.remove()
    stale = remove_stale_memory([SHM, *huge_mounts()])
    result = {"ended": sorted(pids), "removed": there, "stale": [str(path) for path in stale]}
    if as_json:
        print(json.dumps(result))
        return 0
    if pids or there:
        print(f"ended {', '.join(sorted(pids)) or 'no process'}; removed its shared memory")
    else:
        print(f"nothing ran in {root}")
    for path in stale:
        print(f"removed {path}: its supervisor was killed")
    return 0


def _end(pids: list[int], number: int) -> None:
    """Signals and waits, at most DOWN_LIMIT_S, for processes that are not our children."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    for pid in pids:
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        select.select([watched], [], [], DOWN_LIMIT_S)
        os.close(watched)
