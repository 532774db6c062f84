"""A copy under drawn mishaps: both updaters are killed, the job goes back, the copy is too slow,
the link is cut. Whatever comes, the copy is at one of the source's states, and at the newest in the
end: judged by torch's own optimizer."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.bad_link import BadLink
from support.copied import Copy, Source, Trainer
from support.lives import Killed

from flowcheck.replica.state_file.state_file import StateFile
from flowcheck.stages.copy_updater import copy_stage
from flowcheck.stages.replica_copies.change_ring import ChangeRing
from flowcheck.step_numbers import Step

EVENTS = 25
SEEDS = [*range(3), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(3, 100))]
STORES = [(ChangeRing, "put"), (StateFile, "publish"), (ChangeRing, "commit")]


class Drill:
    """One source, one copy, and what happens to them."""

    def __init__(self, seed: int, folder: Path, memory: Path, monkeypatch: Any) -> None:
        self.drawn, self._patch = random.Random(seed), monkeypatch
        room, keeps = self.drawn.choice([0, 1 << 20]), self.drawn.choice([0, 1 << 20])
        self.first = Source(folder / "first", memory / "first", memory_bytes=room)
        self.link = BadLink(self.first.url)
        self.second = Copy(folder / "copy", memory / "copy", [self.link.url], keep_bytes=keeps)
        self.taken: list[int] = []
        """Seeds of the gradients of the source's present past."""
        self.states = {(0, self.first.replica.digest)}
        """All that the source ever had."""
        self._next = self._lives = 1

    def step(self) -> None:
        for _ in range(self.drawn.randint(1, 6)):
            gradient = self.first.trainer.step(self._next)
            self.taken.append(self._next)
            self._next += 1
            self._apply(gradient)

    def killed_in_a_step(self) -> None:
        """The source's updater, at one of its stores or behind it; the next one goes on."""
        owner, name = self.drawn.choice(STORES)
        real, behind = getattr(owner, name), self.drawn.random() < 0.5

        def changed(*words: Any, **named: Any) -> Any:
            if behind:
                real(*words, **named)
            raise Killed

        gradient, step = self.first.trainer.step(self._next), self.first.replica.step + 1
        self.taken.append(self._next)
        self._next += 1
        with self._patch.context() as patched, suppress(Killed):
            patched.setattr(owner, name, changed)
            self.first.kept.before_step(gradient, None)
            self.first.replica.begin(Step(step), gradient).commit()
        self.first.kept.close()
        self.first.reopened()
        if self.first.replica.step != step:
            self._apply(gradient)
        self.states.add((self.first.replica.step, self.first.replica.digest))

    def _apply(self, gradient: Any) -> None:
        self.first.kept.before_step(gradient, None)
        self.first.replica.begin(Step(self.first.replica.step + 1), gradient).commit()
        self.states.add((self.first.replica.step, self.first.replica.digest))
        self.first.service.on_message(None)  # type: ignore[arg-type]

    def back(self) -> None:
        """The job restarts from an earlier step that the source keeps."""
        step = self.drawn.choice(self.first.replica.versions)
        self.first.replica.go_back(step)
        self._lives += 1
        self.first.kept.enter(self._lives)
        self.taken = self.taken[:step]
        self.first.trainer = Trainer()
        for seed in self.taken:
            self.first.trainer.step(seed)

    def killed_copy(self) -> None:
        self.second.again()

    def cut(self) -> None:
        self.link.cut(True)
        self.step()
        self.link.cut(False)

    def damaged(self) -> None:
        self.link.damages = self.drawn.randint(1, 3)

    def look(self) -> None:
        """The copy works for a while, not always to the end."""
        for _ in range(self.drawn.randint(1, 40)):
            self.second.service.work()
            self.judge()

    def judge(self) -> None:
        replica = self.second.replica
        if replica is not None:
            assert (replica.step, replica.digest) in self.states

    def settle(self) -> None:
        newest = self.first.replica
        state = newest.step, newest.digest
        self.second.until(lambda: self.second.service._at.state == state, "the newest state")
        assert self.first.trainer.is_at(self.second.replica)
        assert self.second.lines() == sorted(set(self.second.lines()))

    def close(self) -> None:
        self.second.close()
        self.first.close()
        self.link.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_is_never_at_a_state_that_its_source_had_not(
    seed: int, tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_stage, "STATE_AGAIN_S", 0.05)
    monkeypatch.setattr(copy_stage, "AGAIN_S", 0.05)
    drill = Drill(seed, tmp_path, shm, monkeypatch)
    happens = [drill.step, drill.killed_in_a_step, drill.back, drill.killed_copy, drill.cut]
    happens += [drill.damaged, drill.look, drill.look]
    try:
        for number in range(EVENTS):
            drill.drawn.choice(happens)()
            drill.judge()
            if number % 8 == 7:
                drill.settle()
        drill.step()
        drill.settle()
    finally:
        drill.close()
