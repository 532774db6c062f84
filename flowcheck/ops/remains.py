"""What a chain leaves behind: its replica as a checkpoint, its processes, its shared memory."""

from __future__ import annotations

import json
import os
import select
import signal
from contextlib import suppress
from pathlib import Path

from flowcheck.config import JobConfig, decode_config
from flowcheck.plane.memory import SHM, huge_mounts
from flowcheck.stages.rundir import RunDir, remove_stale_memory
from flowcheck.wire.job import decode_job

DOWN_LIMIT_S = 10.0


def save_checkpoint(config: JobConfig, run: RunDir, directory: Path) -> Path | None:
    """Writes the replica's last committed step; None if there is no replica yet."""
    from flowcheck.replica import checkpoint
    from flowcheck.replica.replica import Replica

    if not run.replica.exists() or config.optimizer is None:
        return None
    job = decode_job(run.learned_job.read_bytes())
    replica = Replica.open(run.replica, config.optimizer)
    try:
        return checkpoint.save(replica, directory, evidence=job.evidence, assumed=job.assumed)
    finally:
        replica.close()


def rescue(run: RunDir) -> str | None:
    """Keeps the replica of a chain whose supervisor was killed, before its place is taken; what was
    done, as a sentence. None where nothing of the kind is there, or the chain lives."""
    if run.stage_pids() or not run.config.exists() or not run.replica.exists():
        return None
    config = decode_config(run.config.read_bytes())
    directory = Path(config.checkpoint) if config.checkpoint is not None else run.root / "rescued"
    saved = save_checkpoint(config, run, directory)
    return (
        f"the chain that ran in {run.root} was killed; its replica is kept in {saved}, "
        "and this one begins anew"
    )


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
