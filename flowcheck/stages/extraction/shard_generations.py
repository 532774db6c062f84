"""Which iteration each generation of the shard is for.

The iteration after the replica's has one at once, the next one when its first message comes: until
then an applied one stays, and copies of it that come late are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.lost_steps import FIRST_MISSING_RANGES
from flowcheck.findings.finding import Finding
from flowcheck.plane.shared_memory.differing_copies import (
    differences,
    is_undecided,
)
from flowcheck.plane.shared_memory.gradient_double_buffer import (
    GENERATIONS,
    TO_APPLY,
    GenerationState,
    GradientShard,
)
from flowcheck.plane.shared_memory.merged_ranges import merged_spans
from flowcheck.step_numbers import Iteration
from flowcheck.wire.traffic.observed_messages import Range

MISSING_RANGES_MAX = 1000
"""Ranges a StepLost names; the shard keeps them all. A choice that bounds the message."""


def _none(_: NDArray[np.uint8]) -> Finding | None:
    return None


@dataclass(frozen=True, slots=True)
class IncompleteIteration:
    """The first iteration that is not complete."""

    iteration: Iteration
    generation: int
    covered_bytes: int
    lost: bool
    conflict_bytes: int = 0
    doubted: bool = False
    """It was handed on, then a copy came that differs, and the updater did not apply it."""


class ShardGenerations:
    """The extractor's side of the shard; all its state is in the shard itself."""

    def __init__(
        self,
        shard: GradientShard,
        problem: Callable[[NDArray[np.uint8]], Finding | None] = _none,
        *,
        doubtful: Callable[[Iteration, int], None] = lambda iteration, conflict_bytes: None,
        taints: bool = False,
        alone: bool = False,
        apart_bytes: int | None = None,
        differing: Callable[[int, bool], None] = lambda generation, last: None,
        wanted: Callable[[], Iteration] | None = None,
    ) -> None:
        """problem: why the bytes of an iteration must not be applied; None: they may. doubtful:
        called for each iteration that was applied before differing copies of it arrived, with how
        many bytes differ; called before its generation is opened again. Where the updater tells it
        by itself, the generation waits for its word. taints, alone: as ActiveJob has them; what
        else comes of PARTIAL iterations is passed and not applied. apart_bytes: as ShardSource has
        them. differing: called at each look at a generation of which copies differ, with whether
        it is the last one, as it will be opened again, or nothing more comes. wanted: the
        last iteration of which messages came; None: every iteration that may have a generation has
        one as soon as it can."""
        self.shard = shard
        self.refused: dict[Iteration, Finding] = {}
        """{iteration: why}"""
        self._problem = problem
        self._told: set[Iteration] = set()
        self._doubtful, self._differing = doubtful, differing
        whole, partial = (GenerationState.COMPLETE,), (GenerationState.PARTIAL,)
        self._applied = whole + partial * (taints or alone)
        """States of what gets into the replica."""
        self._refused_if_different = whole + partial * (taints and not alone)
        """States whose iteration is not taken if copies of it differ."""
        self._apart_bytes = shard.gradient_bytes if apart_bytes is None else apart_bytes
        self._taints = taints and not alone
        self._told_doubtful: set[tuple[int, int]] = set()
        self._wanted = wanted

    def open_free(self, *, ended: bool = False) -> bool:
        """Opens generations for the steps after the replica's, where they are needed. ended: no
        more copies come for which an earlier step should stay. Returns whether any was opened."""
        applied = self.shard.applied_iteration
        last = Iteration(applied + GENERATIONS)
        if self._wanted is not None and not ended:
            last = min(last, max(Iteration(applied + 1), self._wanted()))
        opened = False
        for iteration in map(Iteration, range(applied + 1, last + 1)):
            free = self._free(applied)
            if self.shard.generation_of(iteration) is None and free is not None:
                self._look_back(free, applied, last=True)
                if self._awaits_word(free, applied):
                    continue
                self.shard.begin(free, iteration)
                opened = True
        return opened

    def _free(self, applied: Iteration) -> int | None:
        """That of the earliest applied iteration, if none is empty."""
        found: list[tuple[int, int]] = []
        for generation in range(GENERATIONS):
            state, iteration = (
                self.shard.generation_state(generation),
                self.shard.iteration(generation),
            )
            if state == GenerationState.EMPTY:
                found.append((0, generation))
            elif iteration <= applied:
                found.append((iteration, generation))
        return min(found)[1] if found else None

    def report_late_conflicts(self, *, last: bool = False) -> None:
        """Reports copies that differ, and the steps of which such arrived after they were
        applied. last: nothing more comes, or nobody looks again."""
        applied = self.shard.applied_iteration
        for generation in range(GENERATIONS):
            self._look_back(generation, applied, last=last)

    def _look_back(self, generation: int, applied: Iteration, *, last: bool) -> None:
        """Reports one generation. applied: read no later than what follows depends on."""
        shard, iteration = self.shard, self.shard.iteration(generation)
        if shard.conflict_bytes(generation):
            self._differing(generation, last)
        if shard.generation_state(generation) not in self._applied or iteration > applied:
            return
        if shard.is_conflicting(generation):
            return  # nothing of it was taken
        if self._taints and (shard.is_judged(generation) or self._awaits_word(generation, applied)):
            return  # it was known, or the updater tells it
        this, conflict_bytes = (
            (generation, shard.open_count(generation)),
            shard.conflict_bytes(generation),
        )
        if conflict_bytes and this not in self._told_doubtful:
            self._told_doubtful.add(this)
            self._doubtful(iteration, conflict_bytes)

    def _awaits_word(self, generation: int, applied: Iteration) -> bool:
        """Whether copies of an applied generation differ, and the updater has still to taint what
        they are of."""
        shard = self.shard
        return (
            self._taints
            and shard.generation_state(generation) in self._applied
            and shard.iteration(generation) <= applied
            and is_undecided(shard, generation)
            and self.is_placed(generation)
        )

    def is_placed(self, generation: int) -> bool:
        """Whether it is known which bytes differ, and each matters to its own element alone."""
        return differences(self.shard, generation).is_within(self._apart_bytes)

    @property
    def late_undecided(self) -> bool:
        """Whether the updater has still to taint what differs of applied iterations."""
        applied = self.shard.applied_iteration
        return any(self._awaits_word(g, applied) for g in range(GENERATIONS))

    @property
    def conflict_undecided(self) -> bool:
        """Whether copies of an iteration that is handed on differ, and the updater has not yet
        decided on it."""
        shard, applied = self.shard, self.shard.applied_iteration
        return self.late_undecided or any(
            shard.generation_state(g) in self._refused_if_different
            and shard.iteration(g) > applied
            and shard.conflict_bytes(g) > 0
            and not shard.is_conflicting(g)
            for g in range(GENERATIONS)
        )

    def _over(self, generation: int) -> bool:
        """Whether the updater applies the generation, or has applied it."""
        state = self.shard.generation_state(generation)
        return state in TO_APPLY and (
            state not in self._refused_if_different or not self.shard.is_conflicting(generation)
        )

    def newly_complete(self) -> list[tuple[Iteration, int]]:
        """(iteration, generation) of all that became complete since the last call, ascending."""
        new = []
        for generation in range(GENERATIONS):
            iteration = self.shard.iteration(generation)
            if iteration not in self._told and self._taken(generation, iteration):
                self._told.add(iteration)
                new.append((iteration, generation))
        return sorted(new)

    def _taken(self, generation: int, iteration: Iteration) -> bool:
        """Whether it is complete and not refused; publishes it to the updater then."""
        shard = self.shard
        whole = shard.covered_bytes(generation) == shard.gradient_bytes
        if iteration in self.refused or not whole:
            return False
        if shard.generation_state(generation) == GenerationState.OPEN and not shard.conflict_bytes(
            generation
        ):
            why = self._problem(shard.gradient(generation))
            if why is not None:
                self.refused[iteration] = why
                return False
        return shard.finish(generation)

    def problem_of_partial(self, generation: int) -> Finding | None:
        """Why what came of an iteration must not be applied, with zeros where nothing came."""
        return self._problem(self.shard.with_zeros(generation))

    @property
    def waiting(self) -> bool:
        """Whether the iteration after the replica's is complete: applying it will free a
        generation."""
        generation = self.shard.generation_of(Iteration(self.shard.applied_iteration + 1))
        return generation is not None and self._over(generation)

    def incomplete_iteration(self) -> IncompleteIteration | None:
        """The first iteration after the complete ones, if a generation is open for it."""
        iteration = Iteration(self.shard.applied_iteration + 1)
        while (generation := self.shard.generation_of(iteration)) is not None:
            state = self.shard.generation_state(generation)
            if not self._over(generation):
                covered = self.shard.covered_bytes(generation)
                conflict_bytes = self.shard.conflict_bytes(generation)
                doubted = self.shard.is_conflicting(generation)
                return IncompleteIteration(
                    iteration,
                    generation,
                    covered,
                    state == GenerationState.LOST,
                    conflict_bytes,
                    doubted,
                )
            iteration = Iteration(iteration + 1)
        return None

    def unknown(self, generation: int) -> tuple[Range, ...]:
        """Byte ranges of a generation that did not come, or of which copies differ."""
        spans = differences(self.shard, generation).spans
        return merged_spans((*self.shard.missing(generation), *spans))

    def missing(
        self, short: IncompleteIteration, why: Finding
    ) -> tuple[tuple[tuple[int, int], ...], Finding]:
        """Its missing byte ranges, as many as a message names; and the reason, which says if there
        are more."""
        ranges = self.unknown(short.generation)
        if len(ranges) <= MISSING_RANGES_MAX:
            return ranges, why
        why = FIRST_MISSING_RANGES(reason=why, named=MISSING_RANGES_MAX, ranges=len(ranges))
        return ranges[:MISSING_RANGES_MAX], why
