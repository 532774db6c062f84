"""The handover to a job's later incarnation, killed before and after every change it makes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.chain import torch_steps
from support.incarnations import JOB, Life, floats
from support.staged import Chain

from flowcheck.config import JobConfig, OptimizerConfig, ReplicaConfig, RingConfig, SourceConfig
from flowcheck.lab.synthetic import write_pcap
from flowcheck.messages import Drained, Note, StepLost
from flowcheck.plane.extractor import Extractor
from flowcheck.plane.shard import Shard
from flowcheck.replica.replica import Replica
from flowcheck.stages.extract import ExtractService
from flowcheck.stages.succession import Succession
from flowcheck.stages.update import UpdateService

STEPS = 5
"""Whole ones of the first life."""


class Killed(BaseException):
    """What kill -9 leaves behind is what lies in files and shared memory."""


class Deaths:
    """Once a later life is proved, every process dies at its n-th change, n growing with each."""

    CHANGES = (
        (Path, "rename"),
        (Path, "replace"),
        (Path, "unlink"),
        (shutil, "copy2"),
        (Shard, "clear"),
        (Shard, "apply"),
        (Replica, "go_back"),
        (Extractor, "ignore"),
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.left, self.count = False, 0, 0
        for owner, name in self.CHANGES:
            monkeypatch.setattr(owner, name, self._dying(getattr(owner, name)))
        look = Succession.look

        def looked(*words: Any, **named: Any) -> int:
            found = look(*words, **named)
            self.begun = self.begun or words[0].proved
            return found

        monkeypatch.setattr(Succession, "look", looked)

    def _dying(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*words: Any, **named: Any) -> Any:
            self._perhaps()
            done = change(*words, **named)
            self._perhaps()
            return done

        return changed

    def _perhaps(self) -> None:
        if not self.begun:
            return
        self.left -= 1
        if self.left < 0:
            self.count += 1
            self.left = self.count
            raise Killed


class Both:
    """The extract and the update stage, started again where they died."""

    def __init__(self, chain: Chain, keep_bytes: int) -> None:
        self.chain = chain
        self.config = JobConfig(
            source=(SourceConfig(file="0"),),
            optimizer=OptimizerConfig(name="adamw", learning_rate=1e-3),
            replica=ReplicaConfig(keep_bytes=keep_bytes),
            ring=RingConfig(slots=chain.slots),
            digests=True,
        )
        self.extract, self.update = self._extract(), self._update()

    def _extract(self) -> ExtractService:
        service = ExtractService(self.chain.run, self.config)
        service.start(self.chain.heard)  # type: ignore[arg-type]
        return service

    def _update(self) -> UpdateService:
        service = UpdateService(self.chain.run, self.config)
        service.start(self.chain.heard)  # type: ignore[arg-type]
        return service

    def drive(self) -> None:
        for _ in range(20000):
            self.chain.feed(64)
            try:
                self.extract.work()
            except Killed:
                self.extract = self._again(self.extract, self._extract)
            try:
                self.update.work()
            except Killed:
                self.update = self._again(self.update, self._update)
            if self.extract.drained() and self.update.drained():
                return
        raise AssertionError("the stages never came to an end")

    def _again(self, dead: Any, start: Callable[[], Any]) -> Any:
        while True:
            dead.stop()
            try:
                return start()
            except Killed:
                continue

    def close(self) -> None:
        self.extract.stop()
        self.update.stop()
        self.chain.close()


@pytest.fixture
def play(shm: Path, tmp_path: Path) -> Iterator[Callable[..., Both]]:
    opened: list[Both] = []

    def make(frames: list[Any], keep_bytes: int = 1 << 22) -> Both:
        write_pcap(tmp_path / "lives.pcap", frames)
        chain = Chain(tmp_path, shm / "memory", [tmp_path / "lives.pcap"], 256)
        opened.append(Both(chain, keep_bytes))
        return opened[-1]

    yield make
    for both in opened:
        both.close()


def first_life() -> tuple[Life, list[np.ndarray], np.ndarray]:
    life = Life(JOB)
    told = life.all()
    return life, [floats(g) for g in told.gradients], floats(told.weights)


def cut(life: Life) -> list[Any]:
    return life.frames_of(stop=life.starts[STEPS] + 9)


def lines(both: Both) -> list[dict[str, Any]]:
    return [json.loads(line) for line in both.chain.run.steps.read_text().splitlines()]


@pytest.mark.parametrize("resumed_from", [STEPS, 2])
def test_handover_killed_at_every_change_takes_every_step_once(
    play: Callable[..., Both], monkeypatch: pytest.MonkeyPatch, resumed_from: int
) -> None:
    life, gradients, weights = first_life()
    before = torch_steps(weights, gradients[:STEPS], "adamw", lr=1e-3)
    second = Life(replace(JOB, seed=1), before[resumed_from - 1], number=1)
    later = [floats(g) for g in second.all().gradients]
    wanted = torch_steps(weights, gradients[:resumed_from] + later, "adamw", lr=1e-3)
    both = play(cut(life) + second.frames_of())
    deaths = Deaths(monkeypatch)
    both.drive()
    deaths.begun = False
    assert deaths.count > 20
    told = [line["parameters_sha256"] for line in lines(both)]
    assert told == [hashlib.sha256(p.tobytes()).hexdigest() for p in wanted]
    assert both.chain.heard.of(StepLost) == []
    [audit] = [json.loads(line) for line in both.chain.run.audits.read_text().splitlines()]
    assert (audit["step"], audit["passed"]) == (resumed_from, True)


@pytest.mark.parametrize("other", ["weights", "layout", "step not kept"])
def test_life_that_begins_with_nothing_known_is_not_followed_and_the_replica_is_kept(
    play: Callable[..., Both], other: str
) -> None:
    life, gradients, weights = first_life()
    after = torch_steps(weights, gradients[:STEPS], "adamw", lr=1e-3)
    job, begun, keep_bytes = replace(JOB, seed=1), after[0], 1 << 22
    if other == "weights":
        begun = after[0] + np.float32(1)
    elif other == "layout":
        job, begun = replace(job, shapes=((32, 64), (64,), (10, 64), (10,))), after[STEPS - 1]
    else:
        keep_bytes = 0
    second = Life(job, begun, number=1)
    second.all()
    both = play(cut(life) + second.frames_of(), keep_bytes)
    both.drive()
    assert [line["step"] for line in lines(both)] == list(range(1, STEPS + 1))
    [note] = [m.sentence for m in both.chain.heard.of(Note) if "not followed" in m.sentence]
    told = "other parameters" if other == "layout" else "optimizer state is not known"
    assert told in note
    [kept] = both.chain.run.root.glob("kept-*/step-*")
    assert kept.name == f"step-{STEPS}"
    assert (kept / "optimizer.safetensors").stat().st_size > 2 * after[0].nbytes
    [end] = both.chain.heard.of(Drained)
    assert (end.steps, end.why) == (STEPS, note)
    assert both.chain.heard.of(StepLost) == []
    assert msgspec.json.decode((both.chain.run.verdict).read_bytes())["step"] is None


def test_job_that_goes_on_is_not_given_up_for_one_that_begins_beside_it(
    play: Callable[..., Both],
) -> None:
    life, _, weights = first_life()
    second = Life(replace(JOB, seed=1), weights, number=1)
    second.all()
    middle = life.starts[3]
    stop = len(life.fabric.frames)
    head = life.frames_of(stop=middle)
    tail = life.frames_of(stop=stop)[len(head) :]
    both = play(head + second.frames_of() + tail)
    both.drive()
    assert [line["step"] for line in lines(both)] == list(range(1, JOB.steps + 1))
    assert both.chain.heard.of(StepLost) == []
