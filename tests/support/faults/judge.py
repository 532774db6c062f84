"""What a schedule came to: exact, named loss, refused, or a failure with its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import load_file
from support.faults.chain import LIMIT_S, Life, Ran
from support.faults.schedule import Schedule

EXACT, NAMED, REFUSED, FAILED = "exact", "named loss", "refused", "FAILED"
VERDICTS = (EXACT, NAMED, REFUSED, FAILED)
KILLED = re.compile(r"was killed by signal (\d+)")
ENDED = re.compile(r"(\S+) ended with exit code (\d+)")
NO_ROOM = "no room left on the file system"
TRACEBACK = "Traceback (most recent call last)"
OURS = "9"
"""The one signal that schedules end processes with."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How one schedule ended."""

    seed: int
    verdict: str
    why: str
    """In the words of the chain, or what is wrong with it."""
    seconds: float = 0.0
    taken: int = 0
    """Steps of the replica in the end."""
    steps: int = 0
    """Of the job."""
    faults_done: int = 0


def judged(ran: Ran) -> Verdict:
    """The last command's word, unless anything that any of them left is wrong."""
    wrong = [*_hung(ran), *_crashed(ran), *_lines(ran), *_checkpoints(ran), *_left(ran)]
    verdict, why, taken = _last_word(ran)
    if wrong:
        verdict, why = FAILED, "; ".join(wrong)
    return Verdict(
        seed=ran.schedule.seed, verdict=verdict, why=why, taken=taken, steps=ran.truth.steps
    )


def _last_word(ran: Ran) -> tuple[str, str, int]:
    """(verdict, why, steps taken) by exit code and what was printed."""
    life = ran.lives[-1]
    if life.code == 2:
        said = [line for line in life.err.splitlines() if line.strip()]
        return (REFUSED, said[-1], 0) if said else (FAILED, "refused without a word", 0)
    if life.code not in (0, 1):
        return FAILED, f"ended with {life.code}: {life.err[-300:]}", 0
    try:
        told = json.loads(life.out)
    except ValueError:
        return FAILED, f"ended with {life.code} and told nothing: {life.err[-300:]}", 0
    taken = int(told["steps"])
    for line in told["digests"]:
        if not _is_right(ran, line):
            return FAILED, f"step {line['step']} was told with wrong bytes", taken
    if life.code == 0:
        if taken == ran.truth.steps or (_may_end_early(ran.schedule) and taken):
            return EXACT, "", taken
        return FAILED, f"{taken} of {ran.truth.steps} steps, and no word of the others", taken
    why = _reason(told)
    return (NAMED, why, taken) if why else (FAILED, "it is not whole, and does not say why", taken)


def _reason(told: dict[str, Any]) -> str:
    if told["lost"]:
        why = told["lost"]["why"]
        return f"step {told['lost']['step']} lost: {why and why['sentence']}"
    why = told["why"] or told["taint"]
    return str(why["sentence"]) if why else ""


def _is_right(ran: Ran, line: dict[str, Any]) -> bool:
    """Whether a line of steps has the truth's sums. What one says of a tainted step only its
    checkpoint can show."""
    if line.get("tainted") or line.get("missing_elements"):
        return 1 <= line["step"] <= ran.truth.steps
    sums = line.get("gradient_sha256", ""), line.get("parameters_sha256", "")
    return ran.truth.right(line["step"], *sums)


def _may_end_early(schedule: Schedule) -> bool:
    """Whether nothing of the last steps may have been captured: nobody can miss those."""
    return any(fault.kind in ("cut tail", "lose", "damage", "shorten") for fault in schedule.frames)


def _hung(ran: Ran) -> list[str]:
    return [
        f"not over within {LIMIT_S:.0f} s: {life.why_hung}"
        for life in ran.lives
        if life.code is None
    ]


def _crashed(ran: Ran) -> list[str]:
    """Tracebacks, and deaths that were not the schedule's."""
    logs = [*ran.run.glob("*.log"), *ran.run.glob("previous/*.log")]
    said = [(f"life {n}", life.err + life.out) for n, life in enumerate(ran.lives, 1)]
    said += [(path.name, path.read_text(errors="replace")) for path in logs]
    wrong = []
    for who, text in said:
        if TRACEBACK in text:
            wrong.append(f"{who}: {_last_words(text)}")
        wrong += [f"{who}: a death by signal {n}" for n in KILLED.findall(text) if n != OURS]
        if not (is_tight(ran.schedule) and NO_ROOM in text):
            wrong += [f"{who}: {name} ended with {n}" for name, n in ENDED.findall(text)]
    return wrong


def is_tight(schedule: Schedule) -> bool:
    """Whether a disk of it may be too small for a stage to begin."""
    return bool(schedule.room.run_kib or schedule.room.out_kib)


def _last_words(text: str) -> str:
    """Of the first traceback: the line of the exception."""
    lines = text[text.index(TRACEBACK) :].splitlines()
    return next((line for line in lines[1:] if line and not line[0].isspace()), lines[0])


def _lines(ran: Ran) -> list[str]:
    """Steps that were written down as taken and are not the truth's."""
    wrong = []
    for path in (ran.run / "steps.jsonl", ran.run / "previous/steps.jsonl"):
        # The next life puts what the last one left into `previous`.
        if not path.exists() or path.name in {torn.name for torn in ran.torn}:
            continue
        for line in path.read_bytes().splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                wrong.append(f"{path.name}: a torn line")
                continue
            if not _is_right(ran, told):
                wrong.append(f"step {told['step']} was taken with wrong bytes")
    return wrong


def _checkpoints(ran: Ran) -> list[str]:
    """Of all that lie there: each is whole and right, or it is refused because it was torn."""
    from flowcheck.errors import FlowCheckError
    from flowcheck.replica.checkpoint import checkpoint_save

    wrong = []
    folders = [path for path in ran.out.glob("step-*") if path.is_dir()]
    folders += [path for path in ran.run.glob("rescued*/step-*") if path.is_dir()]
    for folder in folders:
        try:
            manifest = checkpoint_save.load(folder).manifest
        except (FlowCheckError, OSError) as error:
            if not any(path.is_relative_to(folder) for path in ran.torn):
                wrong.append(f"{folder.name} does not load: {error}")
            continue
        right = [ran.truth.weights, *ran.truth.parameters]
        if manifest.step >= len(right):
            wrong.append(f"checkpoint {folder.name} is of no step of the job")
            continue
        found, exact = _parameters(folder, manifest.tainted)
        if found[exact].tobytes() != right[manifest.step].reshape(-1)[exact].tobytes():
            wrong.append(f"checkpoint {folder.name} has wrong bytes")
    return wrong


def _parameters(folder: Path, tainted: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """([elements] values, [elements] bool: not tainted), in registration order."""
    named = load_file(folder / "model.safetensors")
    order = sorted(named, key=lambda name: int(name.rpartition(".")[2]))
    exact = {name: np.ones(named[name].size, np.bool_) for name in order}
    for name, ranges in tainted.items():
        for one in ranges:
            exact[name][one.start : one.stop] = False
    values = np.concatenate([named[name].reshape(-1) for name in order])
    return values, np.concatenate([exact[name] for name in order])


def _left(ran: Ran) -> list[str]:
    """Processes and memory of a chain that ended by itself."""
    wrong = []
    if ran.processes_left:
        wrong.append(f"{ran.processes_left} processes are left")
    ended = ran.lives[-1].code in (0, 1, 2)
    if ended and ran.memory_left and not ran.schedule.torn and not ran.schedule.room.out_kib:
        wrong.append(f"memory is left: {', '.join(ran.memory_left)}")
    return wrong


def bare(schedule: Schedule) -> Schedule:
    """The same job with nothing done to it."""
    return Schedule(seed=schedule.seed, job=schedule.job)


__all__ = ["EXACT", "FAILED", "NAMED", "REFUSED", "VERDICTS", "Life", "Verdict", "bare", "judged"]
