"""What `flowcheck status` prints of a chain's state."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table

from flowcheck.config import JobConfig
from flowcheck.ops.giving import anchored
from flowcheck.ops.running import durable
from flowcheck.ops.running.awaited import awaited
from flowcheck.plane.counters import VERDICTS, lost_frames
from flowcheck.wire.job import Follows


def watched(config: JobConfig) -> str | None:
    """Where the chain's own watcher listens; None: it was not asked for."""
    if config.watch is None:
        return None
    return f"http://{config.watch.listen}/" if config.watch.port else "a port that its log names"


def shown(state: dict[str, Any]) -> None:
    """state: as `status.read` gives it, with leftovers of other runs."""
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
        console.print(awaited(state["logged"]), highlight=False, soft_wrap=True)
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
    if state["watched"]:
        console.print(f"watched at {state['watched']}", highlight=False)
    for reason in state["why_not"]:
        console.print(f"  {reason}", highlight=False, markup=False, soft_wrap=True)
    if not state["stages"][0]["alive"]:
        console.print(_killed(state), highlight=False, soft_wrap=True)
    for sentence in state["leftovers"]:
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


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
