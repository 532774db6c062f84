"""`flowcheck status`: how far a running chain is, read from shared memory."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from flowcheck.config import JobConfig
from flowcheck.errors import ConfigError, LearnError, naming
from flowcheck.ops.analysis.diagram import svg_of
from flowcheck.ops.analysis.learned import communicators_of_job
from flowcheck.ops.giving import anchored
from flowcheck.ops.running import durable, leftovers
from flowcheck.ops.running.chain import last_audit, last_step
from flowcheck.ops.running.told import shown, watched
from flowcheck.plane.ring import Ring
from flowcheck.plane.shard import GENERATIONS, Shard
from flowcheck.stages.chain.child import stage_arguments
from flowcheck.stages.jobs import every
from flowcheck.stages.learning.fitting import addresses_of
from flowcheck.stages.learning.unlearned import reasons
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.gradients import logged
from flowcheck.stages.updating.incarnation import incarnation_of
from flowcheck.wire.job_file import decode_job


def run(root: Path, *, svg: Path | None = None, as_json: bool) -> int:
    """Prints the state of the chain in `root`; svg: a picture of the job it learned is written
    there. Raises ConfigError where there is no chain, or no job to draw."""
    where = RunDir(root)
    try:
        _refuse_ended(where)
    except ConfigError as error:
        if as_json:
            print(json.dumps({"run": str(root), "error": error.right}))
        raise
    if svg is not None:
        _draw(where, svg)
    others = [one for one in leftovers.find() if one.run != root.resolve()]
    first, *beside = [read(own) for own in every(where) if own.memory.exists()]
    state = first | {"leftovers": [one.sentence for one in others], "beside": beside}
    if as_json:
        print(json.dumps(state, indent=1))
    else:
        shown(state)
        for one in beside:
            Console().print(f"[bold]Job {Path(one['run']).name}[/], behind the same capture")
            shown(one | {"leftovers": []})
    return 0 if all(stage["alive"] for one in (first, *beside) for stage in one["stages"]) else 1


def _draw(where: RunDir, svg: Path) -> None:
    if not where.learned_job.exists():
        raise ConfigError("--svg", str(svg), "the job is not learned yet: there is nothing to draw")
    job = decode_job(where.learned_job.read_bytes())
    with naming(svg):
        svg.write_text(svg_of(communicators_of_job(job), f"The job followed in {where.root}"))


def _refuse_ended(where: RunDir) -> None:
    """Raises ConfigError where there is no chain to tell of."""
    where.settings()
    if where.holds_memory and where.memory.exists():
        return
    ended = "has ended"
    if where.holds_memory:
        ended = "was killed, and its shared memory is gone, as after a restart of this machine"
    why = f"the chain that ran there {ended}; its logs and steps.jsonl are in {where.root}"
    raise ConfigError("run", str(where.root), why)


def read(where: RunDir) -> dict[str, Any]:
    """The chain's state as plain values."""
    config = where.settings()
    alive = where.stage_pids()
    rings = []
    for number in range(len(config.rings)):
        with Ring.open(where.ring(number), reader=where.reader) as ring:
            rings.append(
                {
                    "ring": number,
                    "slots": ring.slots,
                    "huge_pages": ring.huge_pages,
                    "head": ring.head,
                    "parse_lag_slots": ring.head - ring.parsed,
                    "extract_lag_slots": ring.parsed - ring.tail,
                    "counters": ring.counters(),
                }
            )
    return {
        "run": str(where.root),
        "stages": [
            {"stage": name, "pid": alive.get(name), "alive": name in alive}
            for name in ["supervisor", *stage_arguments(config, where.reader)]
        ],
        "rings": rings,
        "learned": where.learned_job.exists(),
        "why_not": reasons(where),
        "follows": _follows(where),
        "addresses": _addresses(where),
        "awaits_base": incarnation_of(where).step is None,
        "logged": _logged(where, config),
        "shard": _shard(where),
        "last_step": last_step(where),
        "anchors": anchored.read(where),
        "durable": durable.read(where),
        "served": durable.served(where),
        "watched": watched(config),
        "audit": msgspec.to_builtins(last_audit(where)),
    }


def _follows(where: RunDir) -> str | None:
    """What a learned job is followed by: gradients or parameters."""
    if not where.learned_job.exists():
        return None
    return str(decode_job(where.learned_job.read_bytes()).kind)


def _addresses(where: RunDir) -> list[str]:
    """Of the ports that a learned job's connections were seen at."""
    if not where.learned_job.exists():
        return []
    return addresses_of(decode_job(where.learned_job.read_bytes()))


def _shard(where: RunDir) -> dict[str, Any] | None:
    if not where.shard.exists():
        return None
    with Shard.open(where.shard) as shard:
        return {
            "gradient_bytes": shard.gradient_bytes,
            "applied_step": shard.applied_step,
            "generations": [
                {
                    "state": shard.state(n).name.lower(),
                    "step": shard.step(n),
                    "covered_bytes": shard.covered_bytes(n),
                }
                for n in range(GENERATIONS)
            ],
        }


def _logged(where: RunDir, config: JobConfig) -> tuple[int, int] | None:
    """The steps since it was joined that are logged; None of a job whose start was seen."""
    if incarnation_of(where).step is not None or not where.shard.exists():
        return None
    with suppress(OSError, LearnError):  # it changes hands just now
        if decode_job(where.learned_job.read_bytes()).joined:
            return logged(where, config)
    return None
