"""A whole chain: its memory and run directory made, run in the foreground, taken down again."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from flowcheck.config import JobConfig, encode_config, load_job
from flowcheck.errors import StateError
from flowcheck.plane.flows import FlowTable
from flowcheck.plane.memory import choose
from flowcheck.plane.ring import Ring
from flowcheck.plane.staging import Staging
from flowcheck.stages.links import Links
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.service import run as run_service
from flowcheck.stages.supervisor import Progress, Supervisor
from flowcheck.wire.job import decode_job

DOWN_LIMIT_S = 10.0
RING_HEADER_BYTES = 2 << 20
FLOW_TABLE_BYTES = 16 << 20
"""Roughly, beside the message pool; only decides where memory is taken."""


def memory_need(config: JobConfig) -> int:
    """Bytes of shared memory before the model is known: rings, flow tables, staging."""
    ring = RING_HEADER_BYTES + config.ring.slots * config.ring.slot_bytes * 9 // 8
    pool = FLOW_TABLE_BYTES + 2 * config.ring.slots * 192
    return len(config.rings) * (ring + pool + config.staging.size_bytes)


def create(config: JobConfig, root: Path) -> tuple[RunDir, str]:
    """The run directory with its shared memory, and a sentence about where that lies."""
    place = choose(memory_need(config))
    run = RunDir.create(root, place.folder / f"flowcheck-{os.getpid()}-{time.time_ns() % 10**9}")
    try:
        run.config.write_bytes(encode_config(config))
        for number, (source, _) in enumerate(config.rings):
            ring = Ring.create(
                run.ring(number),
                slots=config.ring.slots,
                slot_bytes=config.ring.slot_bytes,
                live_source=config.source[source].live,
            )
            messages = 2 * config.ring.slots
            flows = FlowTable.create(run.flows(number), messages=messages)
            Staging.create(
                run.staging(number), messages=messages, data_bytes=config.staging.size_bytes
            ).close()
            flows.close()
            ring.close()
    except BaseException:
        run.remove()
        raise
    return run, place.why


def supervise(
    config: JobConfig,
    run: RunDir,
    *,
    until_drained: bool,
    watch: Callable[[Progress], None] | None = None,
) -> Supervisor:
    """Runs the chain to its end. Raises the fault that ended it, if one did."""
    supervisor = Supervisor(run, config, watch=watch)
    code = run_service(supervisor, Links(run.sockets, Links.EVENTS), until_drained=until_drained)
    if code:
        raise StateError(supervisor.sentence or f"the chain failed; its logs: {run.root}/*.log")
    return supervisor


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


def up(job: Path, root: Path | None, *, as_json: bool) -> int:
    """`flowcheck up`: runs until a signal; then a checkpoint, if the job names a place."""
    config = load_job(job)
    run, memory = create(config, root or Path(config.run))
    print(f"flowcheck: {memory}", file=sys.stderr)
    print(f"flowcheck: running in {run.root}; flowcheck status --run {run.root}", file=sys.stderr)
    try:
        supervisor = supervise(config, run, until_drained=False)
        saved = None
        if config.checkpoint is not None:
            saved = save_checkpoint(config, run, Path(config.checkpoint))
        result = {
            "steps": supervisor.progress.steps,
            "digest": supervisor.progress.digest,
            "checkpoint": str(saved) if saved else None,
        }
        print(json.dumps(result) if as_json else _ended(result))
    finally:
        run.remove()
    return 0


def _ended(result: dict[str, object]) -> str:
    where = f"; checkpoint {result['checkpoint']}" if result["checkpoint"] else ""
    return f"stopped after {result['steps']} steps{where}"


def down(root: Path, *, as_json: bool) -> int:
    """`flowcheck down`: ends what runs there and removes what it left."""
    run = RunDir(root)
    pids = run.stage_pids()
    supervisor = pids.pop("supervisor", None)
    _end([supervisor] if supervisor else [], signal.SIGTERM)
    _end(list(RunDir(root).stage_pids().values()), signal.SIGKILL)
    there = (root / "memory").is_symlink()
    run.remove()
    ended = sorted([*pids, *(["supervisor"] if supervisor else [])])
    if as_json:
        print(json.dumps({"ended": ended, "removed": there}))
    elif ended or there:
        print(f"ended {', '.join(ended) or 'no process'}; removed its shared memory")
    else:
        print(f"nothing ran in {root}")
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


def last_step(run: RunDir) -> dict[str, object] | None:
    """The last whole line of steps.jsonl."""
    if not run.steps.exists():
        return None
    lines = [line for line in run.steps.read_bytes().splitlines() if line.endswith(b"}")]
    return msgspec.json.decode(lines[-1]) if lines else None


def assumed(run: RunDir) -> list[str]:
    """What the learned job rests on without evidence; empty before it is learned."""
    if not run.learned_job.exists():
        return []
    return list(decode_job(run.learned_job.read_bytes()).assumed)
