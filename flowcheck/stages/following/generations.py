"""Which step each generation of the shard is for: two are open ahead of the replica."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowcheck.plane.shard import GENERATIONS, Shard, State

MISSING_RANGES_MAX = 1000
"""Ranges a StepLost names; the shard keeps them all."""


def _none(_: NDArray[np.uint8]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Short:
    """The first step that is not whole."""

    step: int
    generation: int
    covered_bytes: int
    lost: bool
    conflict_bytes: int = 0
    doubted: bool = False
    """All came, then a copy that differs, and the updater did not take it."""


class Generations:
    """The extractor's hand on the shard; all its state is in the shard itself."""

    def __init__(
        self,
        shard: Shard,
        problem: Callable[[NDArray[np.uint8]], str] = _none,
        *,
        takes_lost: bool = False,
        doubtful: Callable[[int, int], None] = lambda step, conflict_bytes: None,
    ) -> None:
        """problem: why the bytes of a step must not be taken although all are there; empty: they
        may. takes_lost: of a lost step the replica takes what is there, and goes on. doubtful: is
        told each step that was taken before copies of it came that differ, and in how many bytes;
        before its generation is opened anew."""
        self.shard = shard
        self._done = {State.COMPLETE, State.LOST} if takes_lost else {State.COMPLETE}
        self.refused: dict[int, str] = {}
        """{step: why}"""
        self._problem = problem
        self._told: set[int] = set()
        self._doubtful = doubtful
        self._told_doubtful: set[tuple[int, int]] = set()

    def open_free(self) -> bool:
        """Opens generations for the steps after the replica's; were there any to open?"""
        applied = self.shard.applied_step
        opened = False
        for step in range(applied + 1, applied + 1 + GENERATIONS):
            free = self._free(applied)
            if self.shard.generation_of(step) is None and free is not None:
                self._look_back(free, applied)
                self.shard.begin(free, step)
                opened = True
        return opened

    def _free(self, applied: int) -> int | None:
        for generation in range(GENERATIONS):
            state = self.shard.state(generation)
            if state == State.EMPTY or self.shard.step(generation) <= applied:
                return generation
        return None

    def look_back(self) -> None:
        """Tells the steps that turned doubtful after they were taken."""
        applied = self.shard.applied_step
        for generation in range(GENERATIONS):
            self._look_back(generation, applied)

    def _look_back(self, generation: int, applied: int) -> None:
        """applied: no later than what is done behind this rests on."""
        shard, step = self.shard, self.shard.step(generation)
        if shard.state(generation) != State.COMPLETE or step > applied:
            return
        this, conflict_bytes = (
            (generation, shard.begun(generation)),
            shard.conflict_bytes(generation),
        )
        if conflict_bytes and this not in self._told_doubtful:
            self._told_doubtful.add(this)
            self._doubtful(step, conflict_bytes)

    @property
    def undecided(self) -> bool:
        """Of a whole step two copies differ, and the updater has neither taken nor refused it."""
        shard, applied = self.shard, self.shard.applied_step
        return any(
            shard.state(g) == State.COMPLETE
            and shard.step(g) > applied
            and shard.conflict_bytes(g) > 0
            and not shard.doubted(g)
            for g in range(GENERATIONS)
        )

    def _over(self, generation: int) -> bool:
        """The updater takes it, or has."""
        state = self.shard.state(generation)
        return state in self._done and (
            state != State.COMPLETE or not self.shard.doubted(generation)
        )

    def finished(self) -> list[tuple[int, int]]:
        """(step, generation) of every step that became whole since the last call, ascending."""
        new = []
        for generation in range(GENERATIONS):
            step = self.shard.step(generation)
            if step not in self._told and self._taken(generation, step):
                self._told.add(step)
                new.append((step, generation))
        return sorted(new)

    def _taken(self, generation: int, step: int) -> bool:
        """Whole, and not refused: published for the updater."""
        shard = self.shard
        whole = shard.covered_bytes(generation) == shard.gradient_bytes
        if step in self.refused or not whole:
            return False
        if shard.state(generation) == State.OPEN and not shard.conflict_bytes(generation):
            why = self._problem(shard.gradient(generation))
            if why:
                self.refused[step] = why
                return False
        return shard.finish(generation)

    @property
    def waiting(self) -> bool:
        """The step after the replica's is whole: it will be taken, and a generation be free."""
        generation = self.shard.generation_of(self.shard.applied_step + 1)
        return generation is not None and self._over(generation)

    def short(self) -> Short | None:
        """The first step after the whole ones, if a generation is open for it."""
        step = self.shard.applied_step + 1
        while (generation := self.shard.generation_of(step)) is not None:
            state = self.shard.state(generation)
            if not self._over(generation):
                covered = self.shard.covered_bytes(generation)
                conflict_bytes = self.shard.conflict_bytes(generation)
                doubted = self.shard.doubted(generation)
                return Short(
                    step, generation, covered, state == State.LOST, conflict_bytes, doubted
                )
            step += 1
        return None

    def missing(self, short: Short, why: str) -> tuple[tuple[tuple[int, int], ...], str]:
        """What it lacks, as far as a message names it; and why, which says if it is more."""
        ranges = self.shard.missing(short.generation)
        if len(ranges) <= MISSING_RANGES_MAX:
            return ranges, why
        more = f"; the first {MISSING_RANGES_MAX} of {len(ranges)} missing ranges"
        return ranges[:MISSING_RANGES_MAX], why + more
