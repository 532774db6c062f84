"""`flowcheck status`: how far a running chain is, read from shared memory."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from flowcheck.config import JobConfig
from flowcheck.errors import ConfigError, LearnError, naming
from flowcheck.ops.analysis.diagram import svg_of
from flowcheck.ops.analysis.learned import communicators_of_job
from flowcheck.ops.giving import anchored
from flowcheck.ops.running import durable, leftovers
from flowcheck.ops.running.chain import last_audit, last_step
from flowcheck.plane.counters import VERDICTS, lost_frames
from flowcheck.plane.ring import Ring
from flowcheck.plane.shard import GENERATIONS, Shard
from flowcheck.stages.chain.child import stage_arguments
from flowcheck.stages.jobs import every
from flowcheck.stages.learning.fitting import addresses_of
from flowcheck.stages.learning.unlearned import reasons
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.gradients import logged
from flowcheck.stages.updating.incarnation import incarnation_of
from flowcheck.wire.job import Follows
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
        _print(state)
        for one in beside:
            Console().print(f"[bold]Job {Path(one['run']).name}[/], behind the same capture")
            _print(one | {"leftovers": []})
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


def _print(state: dict[str, Any]) -> None:
    console = Console()
    stages = Table("stage", "pid", title=state["run"])
    for stage in state["stages"]:
        stages.add_row(stage["stage"], str(stage["pid"]) if stage["alive"] else "[red]gone[/]")
    console.print(stages)
    rings = Table("ring", "frames", "parse lag", "extract lag", "dropped", "memory")
    for ring in state["rings"]:
        capture = ring["counters"]["capture"]
        dropped = lost_frames(capture)
        rings.add_row(
            str(ring["ring"]),
            f"{ring['head']:,}",
            f"{ring['parse_lag_slots']:,}",
            f"{ring['extract_lag_slots']:,}",
            f"[red]{dropped:,}[/]" if dropped else "0",
            "2 MiB pages" if ring["huge_pages"] else "/dev/shm",
        )
    console.print(rings)
    verdicts: Counter[str] = Counter()
    for ring in state["rings"]:
        verdicts.update({name: ring["counters"]["parse"][f"{name}_frames"] for name in VERDICTS})
    seen = ", ".join(f"{name} {frames:,}" for name, frames in verdicts.items() if frames)
    console.print(f"frames by verdict: {seen or 'none'}", highlight=False)
    for generation in state["shard"]["generations"] if state["shard"] else ():
        if generation["state"] == "lost" and state["follows"] == Follows.GRADIENTS:
            console.print(f"[red]step {generation['step']} was lost[/]: the replica stops there")
    if state["awaits_base"]:
        console.print(_awaited(state["logged"]), highlight=False, soft_wrap=True)
    step = state["last_step"]
    if state["addresses"]:
        console.print(f"job on {', '.join(state['addresses'])}", highlight=False, soft_wrap=True)
    if step:
        console.print(f"replica at step {step['step']}, digest {step['digest']}", highlight=False)
        if state["follows"] == Follows.PARAMETERS:
            console.print("  of kind: parameters as they are gathered, no optimizer state")
            for name, of in step.get("older", {}).items():
                console.print(f"  of step {of}: {name}", highlight=False, markup=False)
        console.print(_audited(state["audit"]), highlight=False)
    else:
        console.print("no step taken yet" if state["learned"] else "the job is not learned yet")
    told = durable.sentences(state["durable"], step["step"] if step else 0)
    for sentence in [*anchored.sentences(state["anchors"]), *told]:
        console.print(sentence, highlight=False, soft_wrap=True)
    if state["served"]:
        console.print(f"steps are served at {state['served']}", highlight=False)
    for reason in state["why_not"]:
        console.print(f"  {reason}", highlight=False, markup=False, soft_wrap=True)
    if not state["stages"][0]["alive"]:
        console.print(_killed(state), highlight=False, soft_wrap=True)
    for sentence in state["leftovers"]:
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def _logged(where: RunDir, config: JobConfig) -> tuple[int, int] | None:
    """The steps since it was joined that are logged; None of a job whose start was seen."""
    if incarnation_of(where).step is not None or not where.shard.exists():
        return None
    with suppress(OSError, LearnError):  # it changes hands just now
        if decode_job(where.learned_job.read_bytes()).joined:
            return logged(where, config)
    return None


def _awaited(steps: tuple[int, int] | None) -> str:
    if steps is None:
        return "the job began with a state that is not known: flowcheck base FILE gives it"
    held = f"its steps {steps[0]} to {steps[1]} since are logged"
    told = held if steps[1] else "nothing is logged yet"
    return (
        f"the job was joined amid its run; {told}: with two checkpoints of the trainer's, "
        "flowcheck base FILE --then LATER makes the replica go on"
    )


def _killed(state: dict[str, Any]) -> str:
    """What to do about a chain whose supervisor is gone."""
    run = state["run"]
    waits = state["logged"]
    if waits is not None and waits[1]:
        return (
            f"[red]its supervisor was killed[/]: steps {waits[0]} to {waits[1]} since it joined "
            "the job are logged in memory, and go with it: flowcheck up joins the job again"
        )
    if not state["last_step"]:
        return f"[red]its supervisor was killed[/]: flowcheck down --run {run} removes what is left"
    return (
        "[red]its supervisor was killed[/], its replica is in memory still: flowcheck restore "
        f"--run {run} gives it back, flowcheck up and flowcheck down --run {run} make it a "
        "checkpoint first"
    )


def _audited(audit: dict[str, Any] | None) -> str:
    if audit is None:
        return "never audited: hold it against a checkpoint of the trainer, flowcheck audit FILE"
    if audit["passed"]:
        return f"audit passed at step {audit['step']}"
    return f"[red]audit FAILED at step {audit['step']}[/]: {audit['first_difference']} differs"
