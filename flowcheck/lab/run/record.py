"""`flowcheck lab record`: what the mirror port carried while a job ran, with truth beside it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from flowcheck.errors import FlowCheckError
from flowcheck.lab import cluster
from flowcheck.lab.cluster import UPLINK
from flowcheck.lab.run.compare import trainer_digests
from flowcheck.lab.run.plan import GPT, MASTER_PORT, Plan, optimizer_lines, settings_of
from flowcheck.lab.run.tap import Tap
from flowcheck.lab.run.trainers import Script, Trainers

LOOK_S = 0.1
ITEM_BYTES = {"uint8": 1, "int8": 1, "bool": 1, "float16": 2, "bfloat16": 2, "int16": 2}
ITEM_BYTES |= {"float32": 4, "int32": 4, "float64": 8, "int64": 8}
SAME = ("kind", "dtype", "count", "protocol", "channels", "ranks")
"""What every rank must say of one collective."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The files of one recording, side by side."""

    capture: Path
    truth: Path
    job: Path | None
    """For `flowcheck replay --job`; None for a script whose optimizer only its user knows."""
    frames: int
    bytes: int
    collectives: int
    steps: int


def record(
    plan: Plan,
    out: Path,
    *,
    script: Script | None = None,
    digests: Path | None = None,
    limit_s: float = 300.0,
) -> Recording:
    """Runs the job on a cluster of its own and writes out.pcapng, out.json and out.toml.

    script: instead of the lab's own; digests: the file it writes about its own steps.
    Raises FlowCheckError where the job failed or hung, or a frame was dropped.
    """
    own = script is None
    shutil.rmtree(plan.folder, ignore_errors=True)
    plan.trainers_folder.mkdir(parents=True)
    (plan.trainers_folder / "logs").mkdir()
    out.parent.mkdir(parents=True, exist_ok=True)
    launched = script or plan.script("job", "--digests", str(plan.digests))
    capture = out.with_suffix(".pcapng")
    said = _comment(plan, launched)
    cluster.down(plan.cluster.name)
    cluster.up(plan.cluster)
    try:
        space = plan.cluster.checkpoint_namespace
        with Tap(space, UPLINK, capture, comment=said) as tap:
            _run(plan, launched, limit_s)
        seen = tap.seen
    finally:
        cluster.down(plan.cluster.name)
    collectives = condensed(plan.trainers_folder / "truth", plan.cluster.hosts)
    told = plan.digests if own else digests
    steps = trainer_digests(told) if told else {}
    truth: dict[str, Any] = {
        "made_by": said,
        "hosts": plan.cluster.hosts,
        "mirrors": list(map(str, plan.cluster.mirrors)),
        "mtu": plan.cluster.mtu,
        "nccl": plan.nccl,
        "frames": seen.frames,
        "steps": [{"step": step, "sha256": kept} for step, kept in sorted(steps.items())],
        "collectives": collectives,
    }
    out.with_suffix(".json").write_text(_readable(truth))
    job = out.with_suffix(".toml") if own else None
    if job is not None:
        job.write_text(_job(plan))
    return Recording(
        capture=capture,
        truth=out.with_suffix(".json"),
        job=job,
        frames=seen.frames,
        bytes=capture.stat().st_size,
        collectives=len(collectives),
        steps=len(steps),
    )


def _run(plan: Plan, script: Script, limit_s: float) -> None:
    told = {**plan.environment, "FLOWCHECK_LAB_TRUTH": str(plan.trainers_folder / "truth")}
    trainers = Trainers(
        script,
        plan.cluster,
        port=MASTER_PORT,
        environment=told,
        logs=plan.trainers_folder / "logs",
    )
    deadline_s = time.monotonic() + limit_s
    try:
        while not trainers.ended():
            if time.monotonic() > deadline_s:
                raise FlowCheckError(f"the job did not end within {limit_s:.0f} s")
            Event().wait(LOOK_S)
    finally:
        trainers.kill()


def condensed(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Collectives of all groups in rank 0's order: kind, bytes, protocol and the sha256 of what
    they made; a list of one per rank where ranks made different things.

    Raises FlowCheckError where the ranks do not tell of the same collectives.
    """
    told = [_lines(folder / f"rank{rank}.jsonl") for rank in range(ranks)]
    found = []
    for position, first in enumerate(told[0]):
        key = (first["group"], first["index"])
        alike = [of_rank for of_rank in (_find(lines, key) for lines in told) if of_rank]
        if first["kind"] not in ("send", "recv") and any(
            [other[name] for name in SAME] != [first[name] for name in SAME] for other in alike
        ):
            raise FlowCheckError(f"the ranks' accounts of collective {position} differ: {alike}")
        hashes = [one.get("sha256") for one in alike]
        found.append(
            {name: first[name] for name in ("group", *SAME)}
            | {
                "bytes": first["count"] * ITEM_BYTES[first["dtype"]],
                "sha256": hashes[0] if len(set(hashes)) == 1 else hashes,
            }
        )
    return found


def _find(lines: Sequence[dict[str, Any]], key: tuple[str, int]) -> dict[str, Any] | None:
    return next((one for one in lines if (one["group"], one["index"]) == key), None)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _comment(plan: Plan, script: Script) -> str:
    """The command, without folders."""
    words = [f"--hosts {plan.cluster.hosts}", f"--switch {plan.cluster.switch}"]
    words += [f"--mirror {mirror}" for mirror in plan.cluster.mirrors]
    words += [f"--mtu {plan.cluster.mtu}", f"--nccl {plan.nccl}", f"--channels {plan.channels}"]
    words += [f"--protocol {plan.protocol}"] if plan.protocol else []
    words += [f"--steps {plan.steps}"] if script.path == GPT else [f"--script {script.path.name}"]
    return " ".join(("flowcheck lab record", *words, "--", *plan.arguments)).removesuffix(" --")


def _job(plan: Plan) -> str:
    """The job file of the lab's own script; its schedule by the path from here."""
    settings = settings_of(plan.arguments, plan.steps)
    here = Path.cwd()
    script = GPT.relative_to(here) if GPT.is_relative_to(here) else GPT
    settings["schedule"] = f"{script}:schedule"
    return "\n".join(["[optimizer]", *optimizer_lines(settings), ""])


def _readable(truth: dict[str, Any]) -> str:
    """JSON with one line per step and collective."""
    lines = []
    for key, value in truth.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            inner = ",\n".join(f"  {json.dumps(one)}" for one in value)
            lines.append(f" {json.dumps(key)}: [\n{inner}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
