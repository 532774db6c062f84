"""Which iteration each generation of the shard is for: two are open ahead of the replica."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.lost_steps import FIRST_MISSING_RANGES
from flowcheck.findings.finding import Finding
from flowcheck.plane.shared_memory.gradient_double_buffer import (
    GENERATIONS,
    GenerationState,
    GradientShard,
)
from flowcheck.step_numbers import Iteration

MISSING_RANGES_MAX = 1000
"""Ranges a StepLost names; the shard keeps them all. A choice that bounds the message."""


def _none(_: NDArray[np.uint8]) -> Finding | None:
    return None


@dataclass(frozen=True, slots=True)
class IncompleteStep:
    """The first iteration that is not whole."""

    iteration: Iteration
    generation: int
    covered_bytes: int
    lost: bool
    conflict_bytes: int = 0
    doubted: bool = False
    """All came, then a copy that differs, and the updater did not take it."""


class ShardGenerations:
    """The extractor's hand on the shard; all its state is in the shard itself."""

    def __init__(
        self,
        shard: GradientShard,
        problem: Callable[[NDArray[np.uint8]], Finding | None] = _none,
        *,
        takes_lost: bool = False,
        doubtful: Callable[[Iteration, int], None] = lambda iteration, conflict_bytes: None,
    ) -> None:
        """problem: why the bytes of an iteration must not be applied although all are there; None:
        they may. takes_lost: the replica applies what is there of a lost iteration, and goes on.
        doubtful: is told each iteration that was applied before copies of it came that differ, and
        in how many bytes; before its generation is opened anew."""
        self.shard = shard
        self._done = (
            {GenerationState.COMPLETE, GenerationState.LOST}
            if takes_lost
            else {GenerationState.COMPLETE}
        )
        self.refused: dict[Iteration, Finding] = {}
        """{iteration: why}"""
        self._problem = problem
        self._told: set[Iteration] = set()
        self._doubtful = doubtful
        self._told_doubtful: set[tuple[int, int]] = set()

    def open_free(self) -> bool:
        """Opens generations for the steps after the replica's; were there any to open?"""
        applied = self.shard.applied_iteration
        opened = False
        for iteration in map(Iteration, range(applied + 1, applied + 1 + GENERATIONS)):
            free = self._free(applied)
            if self.shard.generation_of(iteration) is None and free is not None:
                self._look_back(free, applied)
                self.shard.begin(free, iteration)
                opened = True
        return opened

    def _free(self, applied: Iteration) -> int | None:
        for generation in range(GENERATIONS):
            state = self.shard.state(generation)
            if state == GenerationState.EMPTY or self.shard.iteration(generation) <= applied:
                return generation
        return None

    def look_back(self) -> None:
        """Tells the steps that turned doubtful after they were taken."""
        applied = self.shard.applied_iteration
        for generation in range(GENERATIONS):
            self._look_back(generation, applied)

    def _look_back(self, generation: int, applied: Iteration) -> None:
        """applied: no later than what is done behind this rests on."""
        shard, iteration = self.shard, self.shard.iteration(generation)
        if shard.state(generation) != GenerationState.COMPLETE or iteration > applied:
            return
        this, conflict_bytes = (
            (generation, shard.begun(generation)),
            shard.conflict_bytes(generation),
        )
        if conflict_bytes and this not in self._told_doubtful:
            self._told_doubtful.add(this)
            self._doubtful(iteration, conflict_bytes)

    @property
    def undecided(self) -> bool:
        """Two copies of a whole iteration differ, and the updater has not decided on it yet."""
        shard, applied = self.shard, self.shard.applied_iteration
        return any(
            shard.state(g) == GenerationState.COMPLETE
            and shard.iteration(g) > applied
            and shard.conflict_bytes(g) > 0
            and not shard.doubted(g)
            for g in range(GENERATIONS)
        )

    def _over(self, generation: int) -> bool:
        """The updater takes it, or has."""
        state = self.shard.state(generation)
        return state in self._done and (
            state != GenerationState.COMPLETE or not self.shard.doubted(generation)
        )

    def finished(self) -> list[tuple[Iteration, int]]:
        """(iteration, generation) of all that became whole since the last call, ascending."""
        new = []
        for generation in range(GENERATIONS):
            iteration = self.shard.iteration(generation)
            if iteration not in self._told and self._taken(generation, iteration):
                self._told.add(iteration)
                new.append((iteration, generation))
        return sorted(new)

    def _taken(self, generation: int, iteration: Iteration) -> bool:
        """Whole, and not refused: published for the updater."""
        shard = self.shard
        whole = shard.covered_bytes(generation) == shard.gradient_bytes
        if iteration in self.refused or not whole:
            return False
        if shard.state(generation) == GenerationState.OPEN and not shard.conflict_bytes(generation):
            why = self._problem(shard.gradient(generation))
            if why is not None:
                self.refused[iteration] = why
                return False
        return shard.finish(generation)

    @property
    def waiting(self) -> bool:
        """The iteration after the replica's is whole: it will be applied and free a generation."""
        generation = self.shard.generation_of(Iteration(self.shard.applied_iteration + 1))
        return generation is not None and self._over(generation)

    def short(self) -> IncompleteStep | None:
        """The first iteration after the whole ones, if a generation is open for it."""
        iteration = Iteration(self.shard.applied_iteration + 1)
        while (generation := self.shard.generation_of(iteration)) is not None:
            state = self.shard.state(generation)
            if not self._over(generation):
                covered = self.shard.covered_bytes(generation)
                conflict_bytes = self.shard.conflict_bytes(generation)
                doubted = self.shard.doubted(generation)
                return IncompleteStep(
                    iteration,
                    generation,
                    covered,
                    state == GenerationState.LOST,
                    conflict_bytes,
                    doubted,
                )
            iteration = Iteration(iteration + 1)
        return None

    def missing(
        self, short: IncompleteStep, why: Finding
    ) -> tuple[tuple[tuple[int, int], ...], Finding]:
        """Its missing byte ranges, as far as a message names them; and why, which says if there are
        more."""
        ranges = self.shard.missing(short.generation)
        if len(ranges) <= MISSING_RANGES_MAX:
            return ranges, why
        why = FIRST_MISSING_RANGES(reason=why, named=MISSING_RANGES_MAX, ranges=len(ranges))
        return ranges[:MISSING_RANGES_MAX], why
