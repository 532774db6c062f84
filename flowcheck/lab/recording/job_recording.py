"""`flowcheck lab record`: a capture of the mirror port while a job runs, with the ground truth."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from flowcheck.atomic_write import atomic_path, write_atomically
from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.findings.catalog.lab_runs import ACCOUNTS_DIFFER
from flowcheck.findings.catalog.refused_lab_options import OUT_FILE_EXISTS, OUT_NOT_REPLACEABLE
from flowcheck.lab import cluster
from flowcheck.lab.cluster import UPLINK
from flowcheck.lab.job_run.digest_comparison import trainer_digests
from flowcheck.lab.job_run.hang_detection import HangDetector
from flowcheck.lab.job_run.run_plan import (
    GPT,
    MASTER_PORT,
    LabPlan,
    optimizer_lines,
    optimizer_settings_of,
)
from flowcheck.lab.job_run.torchrun_trainers import Script, Trainers
from flowcheck.lab.recording.packet_tap import PacketTap, TapCounts
from flowcheck.replica.optimizer_step.c_kernel_args import square_root_name

LOOK_S = 0.1
"""Seconds between two checks of the processes. A choice: a shorter time costs CPU time."""
FILE_SUFFIXES = (".pcapng", ".json", ".toml")
"""Suffixes of a recording's files: capture, ground truth, job file."""
ITEM_BYTES = {"uint8": 1, "int8": 1, "bool": 1, "float16": 2, "bfloat16": 2, "int16": 2}
ITEM_BYTES |= {"float32": 4, "int32": 4, "float64": 8, "int64": 8}
FIELDS_EQUAL_ON_ALL_RANKS = (
    *("kind", "dtype", "count", "algorithm", "protocol", "channels", "ranks"),
)
"""Fields that all ranks must report equally for one collective."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The files of one recording."""

    capture: Path
    truth: Path
    job: Path | None
    """Job file for `flowcheck replay --job`; None: the optimizer of the user's own script is not
    known."""
    frames: int
    bytes: int
    collectives: int
    steps: int | None
    """None: no digests tell."""


def record(
    plan: LabPlan,
    out: Path,
    *,
    script: Script | None = None,
    digests: Path | None = None,
    force: bool = False,
) -> Recording:
    """Runs a job on a cluster of its own and writes out.pcapng, out.json and out.toml.

    script: training script; None: the lab's own.
    digests: file into which the script writes digests of its steps.
    force: replace an earlier recording of this name.

    Raises OSError if the script cannot be read, ConfigError if such a recording exists and `force`
    is not set, FlowCheckError if the job failed or hung, a frame was dropped, or another run uses
    the cluster.
    """
    own = script is None
    if script is not None:
        _check_script(script.path)
    capture, truth_file, *job = check_outputs(out, own=own, force=force)
    shutil.rmtree(plan.folder, ignore_errors=True)
    plan.trainers_folder.mkdir(parents=True)
    (plan.trainers_folder / "logs").mkdir()
    out.parent.mkdir(parents=True, exist_ok=True)
    launched = script or plan.script("job", "--digests", str(plan.digests))
    said = _comment(plan, launched)
    # Nothing has its name before all is known: after an error what was there before is there.
    with atomic_path(capture, durable=False) as place:
        with cluster.reserved(plan.cluster.name):
            seen = _captured(plan, launched, place, said)
        collectives = collectives_of_all_ranks(plan.trainers_folder / "truth", plan.cluster.ranks)
    told = plan.digests if own else digests
    steps = trainer_digests(told) if told else {}
    truth: dict[str, Any] = {
        "made_by": said,
        "hosts": plan.cluster.hosts,
        "gpus_per_host": plan.cluster.gpus,
        "nics_per_host": plan.cluster.nics,
        "mirrors": list(map(str, plan.cluster.mirrors)),
        "mtu": plan.cluster.mtu,
        "nccl": plan.nccl,
        "roots": square_root_name(),
        "frames": seen.frames,
        "steps": [{"step": step, "sha256": kept} for step, kept in sorted(steps.items())],
        "collectives": collectives,
    }
    write_atomically(truth_file, _readable(truth).encode(), durable=False)
    for path in job:
        write_atomically(path, _job(plan).encode(), durable=False)
    return Recording(
        capture=capture,
        truth=truth_file,
        job=job[0] if job else None,
        frames=seen.frames,
        bytes=capture.stat().st_size,
        collectives=len(collectives),
        steps=len(steps) if told else None,
    )


def _check_script(path: Path) -> None:
    """Raises OSError for a training script that cannot be read: known before the cluster is made,
    not from a trainer's log."""
    with path.open("rb"):
        pass


def check_outputs(out: Path, *, own: bool, force: bool) -> list[Path]:
    """Paths of the files of a recording named `out` (with or without suffix). own: it is the lab's
    own script, which gets a job file. Raises ConfigError if one exists and `force` is not set."""
    name = out.stem if out.suffix in FILE_SUFFIXES else out.name
    found = [out.with_name(name + end) for end in (FILE_SUFFIXES if own else FILE_SUFFIXES[:-1])]
    for path in found:
        if os.path.lexists(path) and not (force and path.is_file() and not path.is_symlink()):
            plain = path.is_file() and not path.is_symlink()
            right = (OUT_FILE_EXISTS if plain else OUT_NOT_REPLACEABLE)(path)
            raise ConfigError("--out", str(out), right)
    return found


def _captured(plan: LabPlan, script: Script, capture: Path, comment: str) -> TapCounts:
    """What the mirror port carried while the script ran on a cluster that is gone behind it."""
    cluster.down(plan.cluster.name)
    cluster.up(plan.cluster)
    try:
        space = plan.cluster.checkpoint_namespace
        with PacketTap(space, UPLINK, capture, comment=comment) as tap:
            _run(plan, script)
        return tap.packet_count
    finally:
        cluster.down(plan.cluster.name)


def _run(plan: LabPlan, script: Script) -> None:
    truth = plan.trainers_folder / "truth"
    trainers = Trainers(
        script,
        plan.cluster,
        port=MASTER_PORT,
        environment={**plan.environment, "FLOWCHECK_LAB_TRUTH": str(truth)},
        logs=plan.trainers_folder / "logs",
    )
    moving = HangDetector("the job that is recorded", trainers)
    try:
        while not trainers.ended():
            # A collective is a line of each rank: whoever's script it is, this tells it gets on.
            moving.check([path.stat().st_size for path in sorted(truth.glob("*.jsonl"))])
            Event().wait(LOOK_S)
    finally:
        trainers.kill()


def collectives_of_all_ranks(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """All collectives in rank 0's order: kind, bytes, protocol, and the sha256 of the result; a
    list with one per rank if the ranks' results differ. folder: the ranks' ground truth logs.
    Raises FlowCheckError if the ranks report different collectives."""
    told = [_lines(folder / f"rank{rank}.jsonl") for rank in range(ranks)]
    found = []
    for position, first in enumerate(told[0]):
        key = (first["group"], first["index"])
        alike = [of_rank for of_rank in (_find(lines, key) for lines in told) if of_rank]
        if first["kind"] not in ("send", "recv") and any(
            [other[name] for name in FIELDS_EQUAL_ON_ALL_RANKS]
            != [first[name] for name in FIELDS_EQUAL_ON_ALL_RANKS]
            for other in alike
        ):
            raise FlowCheckError(ACCOUNTS_DIFFER(number=position, accounts=str(alike)))
        hashes = [one.get("sha256") for one in alike]
        found.append(
            {name: first[name] for name in ("group", *FIELDS_EQUAL_ON_ALL_RANKS)}
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


def _comment(plan: LabPlan, script: Script) -> str:
    """The command, without folders."""
    words = [f"--hosts {plan.cluster.hosts}"]
    if plan.cluster.gpus > 1:
        words += [f"--gpus-per-host {plan.cluster.gpus}", f"--nics-per-host {plan.cluster.nics}"]
    words += [f"--switch {plan.cluster.switch}"]
    words += [f"--mirror {mirror}" for mirror in plan.cluster.mirrors]
    words += [f"--mtu {plan.cluster.mtu}", f"--nccl {plan.nccl}", f"--channels {plan.channels}"]
    words += [f"--protocol {plan.protocol}"] if plan.protocol else []
    words += [f"--algo {plan.algo}"] if plan.algo else []
    words += [] if plan.tree_below is None else [f"--tree-below {plan.tree_below}"]
    words += [] if plan.nvls_from is None else [f"--nvls-from {plan.nvls_from}"]
    words += [f"--steps {plan.steps}"] if script.path == GPT else [f"--script {script.path.name}"]
    return " ".join(("flowcheck lab record", *words, "--", *plan.arguments)).removesuffix(" --")


def _job(plan: LabPlan) -> str:
    """The job file of the lab's own script; its schedule by the path from here."""
    settings = optimizer_settings_of(plan.arguments, plan.steps)
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
