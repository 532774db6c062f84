"""Run directories as the version before the lifecycle record wrote them.

`frozen` are such folders that it left, killed at many places, in tests/data/earlier_runs;
`take_over` is that version's own taking over of a later incarnation, word for word, and
`as_before` gives a run of today its files. What both write is held against the frozen ones
(test_earlier_runs.py).
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from safetensors import safe_open
from safetensors.numpy import save_file
from support.lifecycle import waiting
from support.lives import Both, Deaths, Killed

from flowcheck.atomic_write import atomic_path, write_atomically
from flowcheck.findings.finding import Finding
from flowcheck.stages.job_state.lifecycle_record_reader import read_record, update_part_of
from flowcheck.stages.job_state.lifecycle_record_schema import (
    CheckpointRequest,
    Incarnation,
    RestartVerdict,
)
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration

FOLDER = Path(__file__).resolve().parents[1] / "data/earlier_runs"
LIVES_KEPT = 8


@cache
def stories() -> tuple[tuple[str, str], ...]:
    """(story, number of what one kill left in it)"""
    found = []
    for path in sorted(FOLDER.glob("*.tar.xz")):
        with tarfile.open(path) as file:
            names = {name.partition("/")[0] for name in file.getnames()}
        found += [(path.name.removesuffix(".tar.xz"), name) for name in sorted(names)]
    return tuple(found)


@cache
def _contents(story: str) -> dict[str, bytes | None]:
    """{path: content, None for a folder}"""
    with tarfile.open(FOLDER / f"{story}.tar.xz") as file:
        members = file.getmembers()
        return {m.name: None if m.isdir() else file.extractfile(m).read() for m in members}  # type: ignore[union-attr]


def frozen(story: str, number: str, root: Path) -> dict[str, Any]:
    """Lays one of them at `root`, a run directory; what that version's functions said of it."""
    for path, content in _contents(story).items():
        place, _, name = path.partition("/")
        if place != number or name in ("", "facts.json"):
            continue
        to = root / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            to.mkdir(exist_ok=True)
        else:
            to.write_bytes(content)
    facts = _contents(story)[f"{number}/facts.json"]
    assert facts is not None
    told: dict[str, Any] = json.loads(facts)
    return told


def trees(story: str) -> set[tuple[tuple[str, bytes], ...]]:
    """Files of each `learned/`, all that its kills left but for what was half written: in which
    order a folder is copied is the file system's choice."""
    found: dict[str, dict[str, bytes]] = {}
    for path, content in _contents(story).items():
        number, _, name = path.partition("/")
        if content is not None and name.startswith("learned/") and "/." not in name:
            found.setdefault(number, {})[name.removeprefix("learned/")] = content
    return {tuple(sorted(tree.items())) for tree in found.values()}


def tree_of(folder: Path) -> tuple[tuple[str, bytes], ...]:
    """Files of a folder, but for what was half written."""
    files = (path for path in folder.rglob("*") if path.is_file())
    named = ((str(path.relative_to(folder)), path) for path in files)
    return tuple(
        sorted((name, path.read_bytes()) for name, path in named if "/." not in f"/{name}")
    )


def take_over(folder: Path, clear: Callable[[], None]) -> None:
    """That version's, in `learned/`; clear: what it did to the shard."""
    successor = folder / "next"
    verdict = json.loads((successor / "verdict.json").read_bytes())
    history = folder / str(verdict["number"])
    if not history.exists():
        with atomic_path(history, durable=False) as place:
            place.mkdir(mode=0o700)
            for file in (path for path in folder.iterdir() if path.is_file()):
                shutil.copy2(file, place)
    (folder / "recuts").unlink(missing_ok=True)
    (folder / "numbers").unlink(missing_ok=True)
    (folder / "assumed.json").unlink(missing_ok=True)
    clear()
    for name in ("names", "numbers", "weights.bin", "beside.bin"):
        if (successor / name).exists():
            write_atomically(folder / name, (successor / name).read_bytes())
    followed = Incarnation(
        number=verdict["number"] + 1,
        iterations=Iteration(verdict["iterations"]),
        step=verdict["step"],
    )
    if not (successor / "weights.bin").exists():
        (folder / "weights.bin").unlink(missing_ok=True)
    write_atomically(folder / "incarnation.json", msgspec.json.encode(followed))
    write_atomically(folder / "job.json", (successor / "job.json").read_bytes())
    successor.rename(history / successor.name)
    for number in range(1, verdict["number"] - LIVES_KEPT + 1):
        shutil.rmtree(folder / str(number), ignore_errors=True)


def as_before(run: RunDir) -> None:
    """The files that said there what the record of this run says. No stage runs."""
    if not (run.extract_record.exists() or run.update_record.exists()):
        return
    record, folder = read_record(run), run.learned_folder
    number, request, verdict = record.incarnation.number, _asked(run), record.verdict
    for path in folder.glob("next*"):
        if path.name == f"next-{number}":  # taken over, and not moved into the history yet
            verdict = record.update.verdict
        elif record.extract.offered is None or path.name != record.extract.offered.folder:
            shutil.rmtree(path)
            continue
        path.rename(folder / "next")
        if verdict is not None:
            told = msgspec.to_builtins(verdict) | {"why": str(verdict.why or "")}  # a sentence
            (folder / "next/verdict.json").write_bytes(msgspec.json.encode(told))
    if record.incarnation != Incarnation():
        (folder / "incarnation.json").write_bytes(msgspec.json.encode(record.incarnation))
    if request is not None:
        _give(folder, request)
    for path in (run.extract_record, run.update_record, run.request_record):
        path.unlink(missing_ok=True)


def _asked(run: RunDir) -> CheckpointRequest | None:
    request = waiting(run)
    return update_part_of(run).taking if request is None else request


def _give(folder: Path, request: CheckpointRequest) -> None:
    """A base or an anchor, as a file that is the request itself."""
    if not (folder / request.file).exists():
        return
    with safe_open(folder / request.file, framework="numpy") as file:
        sections = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    told = {"step": str(request.step), "source": request.source}
    told |= {"after": str(request.after)} if request.kind == "base" else {"request": request.id}
    (folder / request.file).unlink()
    save_file(sections, folder / f"{request.kind}.safetensors", metadata=told)


class Upgraded(Both):
    """Both stages are killed where one is, what they leave is given the files of the version
    before, and they are started again."""

    deaths: Deaths
    upgrades = 0

    def _again(self, dead: Any, start: Callable[[], Any]) -> Any:
        made: list[Any] = [self.extract, self.update]
        while len(made) < 2 or made[0] in (self.extract, self.update):
            for stage in made:
                stage.stop()
            begun, self.deaths.begun = self.deaths.begun, False
            as_before(self.chain.run)
            self.upgrades += 1
            self.deaths.begun = begun
            made = []
            with suppress(Killed):
                made.append(self._extract())
                made.append(self._update())
        self.extract, self.update = made
        return self.extract if start == self._extract else self.update


def verdict_of(facts: dict[str, Any]) -> RestartVerdict | None:
    told = facts["verdict"]
    if told is None:
        return None
    why = Finding("earlier.sentence", {"sentence": told["why"]}) if told["why"] else None
    return msgspec.structs.replace(msgspec.convert(told | {"why": None}, RestartVerdict), why=why)
