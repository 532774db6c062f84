"""Gradients that the extractor places in shared memory, for a job whose connections it follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.finding import Finding
from flowcheck.plane.shared_memory.differing_copies import (
    Differences,
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
from flowcheck.stages.replica_update.gradient_sources.gradient_source import (
    LateDifferences,
    Opening,
    SourceProgress,
)
from flowcheck.step_numbers import Iteration
from flowcheck.wire.traffic.observed_messages import Range


@dataclass(frozen=True, slots=True)
class ShardGradient:
    """One generation of the shard: COMPLETE, or PARTIAL, which is applied as far as it came."""

    shard: GradientShard
    generation: int
    iteration: Iteration
    refused_if_different: bool
    """Whether copies that differ keep it from being applied; else it goes on without all its
    bytes."""
    without_different: bool
    """Whether it is applied where copies differ, without the bytes that do."""
    differences: Differences
    """What differed when it was looked at."""

    @property
    def data(self) -> NDArray[np.uint8]:
        return self.shard.gradient(self.generation)

    @property
    def unbelieved(self) -> Sequence[Range]:
        """The ranges that are missing or differ. Where only `without_different` may tell them
        apart, and it is not so, all of it if any byte differs."""
        differs = self.differences.conflict_bytes > 0
        if differs and not (self.without_different or self.refused_if_different):
            return ((0, self.shard.gradient_bytes),)
        spans = self.differences.spans if self.without_different else ()
        if self.shard.generation_state(self.generation) == GenerationState.COMPLETE:
            return spans
        return merged_spans((*self.shard.missing(self.generation), *spans))

    def certain(self) -> bool:
        """Whether no copy of it differs that `unbelieved` does not tell; if one does, and nothing
        of it can be used then, a mark in the shard tells the extractor so."""
        shard, generation = self.shard, self.generation
        if self.without_different:
            if not self.differences.is_current(shard, generation):
                return False  # the next look at it knows more
            shard.judge(generation, self.differences.conflict_bytes)
            return True
        if shard.conflict_bytes(generation):
            shard.mark_conflicting(generation)
        return not self.doubted

    @property
    def doubted(self) -> bool:
        if self.without_different:
            return not self.differences.is_current(self.shard, self.generation)
        believed = self.refused_if_different or not self.differences.conflict_bytes
        return believed and self.shard.is_conflicting(self.generation)


class ShardCoverage:
    """Which bytes of an OPEN generation the extractor has placed. early_step.py explains its
    counters and their order."""

    def __init__(self, shard: GradientShard) -> None:
        self._shard = shard

    def opening(self, iteration: Iteration) -> Opening | None:
        shard, generation = self._shard, self._shard.generation_of(iteration)
        if generation is None or shard.generation_state(generation) != GenerationState.OPEN:
            return None
        undone = shard.rollback_count  # before any look at coverage
        return Opening(generation, shard.open_count(generation), undone)

    def contradicted(self, opening: Opening) -> bool:
        return self._shard.conflict_bytes(opening.place) > 0

    def gradient(self, opening: Opening) -> NDArray[np.uint8]:
        return self._shard.gradient(opening.place)

    def missing(self, opening: Opening) -> Sequence[Range]:
        return self._shard.missing(opening.place)

    @property
    def settled(self) -> int:
        return self._shard.settled

    def is_whole(self, opening: Opening) -> bool:
        shard, place = self._shard, opening.place
        whole = shard.generation_state(place) == GenerationState.COMPLETE
        return whole and (shard.open_count(place), shard.rollback_count) == (
            opening.number,
            opening.undone,
        )


def shard_progress(shard: GradientShard) -> SourceProgress:
    """How far the extractor and the updater are."""
    applied = shard.applied_iteration
    held = [(shard.iteration(g), shard.generation_state(g), g) for g in range(GENERATIONS)]
    complete = {it: g for it, s, g in held if s in TO_APPLY and it > applied}
    next_iteration = Iteration(applied + 1)
    is_next_complete = next_iteration in complete
    under_way = [
        shard.covered_bytes(g)
        for it, s, g in held
        if s == GenerationState.OPEN and it == next_iteration
    ]
    return SourceProgress(
        gradient_bytes=shard.gradient_bytes,
        applied_iteration=applied,
        complete=len(complete),
        next_is_complete=is_next_complete and not _is_refused(shard, complete[next_iteration]),
        lost_iteration=min((it for it, s, _ in held if s == GenerationState.LOST), default=None),
        next_covered_bytes=under_way[0] if under_way else None,
        covered_bytes=sum(shard.covered_bytes(g) for g in range(GENERATIONS)),
    )


def _is_refused(shard: GradientShard, generation: int) -> bool:
    """Whether nothing of a generation is taken, as copies of it differ."""
    complete = shard.generation_state(generation) == GenerationState.COMPLETE
    return complete and shard.is_conflicting(generation)


class ShardSource:
    """The updater's side of the shard: the only writer of its applied iteration."""

    def __init__(
        self, shard: GradientShard, *, taints: bool = False, apart_bytes: int | None = None
    ) -> None:
        """taints: what came of a PARTIAL iteration is applied as a step of its own. apart_bytes:
        the first bytes of an iteration, each of which matters to its own element alone; None:
        all."""
        self._shard, self._taints = shard, taints
        self._apart_bytes = shard.gradient_bytes if apart_bytes is None else apart_bytes
        self._coverage = ShardCoverage(shard)

    @property
    def gradient_bytes(self) -> int:
        return self._shard.gradient_bytes

    @property
    def module_buffer_bytes(self) -> int:
        return self._shard.module_buffer_bytes

    @property
    def applied_iteration(self) -> Iteration:
        return self._shard.applied_iteration

    @property
    def next_iteration(self) -> Iteration:
        return Iteration(self._shard.applied_iteration + 1)

    def arrived(self, iteration: Iteration) -> ShardGradient | None:
        generation = self._shard.generation_of(iteration)
        if generation is None:
            return None
        state = self._shard.generation_state(generation)
        if state not in TO_APPLY:
            return None
        refused = state == GenerationState.COMPLETE or self._taints
        found = differences(self._shard, generation)
        without = self._taints and found.is_within(self._apart_bytes)
        return ShardGradient(self._shard, generation, iteration, refused, without, found)

    def differing_late(self) -> Sequence[LateDifferences]:
        shard, applied = self._shard, self._shard.applied_iteration
        found = []
        for generation in range(GENERATIONS) if self._taints else ():
            iteration = shard.iteration(generation)
            if is_undecided(shard, generation) and iteration <= applied:
                now = differences(shard, generation)
                if now.is_within(self._apart_bytes):
                    found.append(
                        LateDifferences(generation, iteration, now.conflict_bytes, now.spans)
                    )
        return found

    def settle_late(self, late: LateDifferences) -> None:
        self._shard.judge(late.place, late.conflict_bytes)

    def module_buffers(self, iteration: Iteration) -> NDArray[np.uint8] | None:
        generation = self._shard.generation_of(iteration)
        return None if generation is None else self._shard.module_buffers(generation)

    @property
    def partial(self) -> ShardCoverage:
        return self._coverage

    @property
    def ended(self) -> bool:
        generation = self._shard.generation_of(self.next_iteration)
        if generation is None:
            return False
        return self._shard.generation_state(generation) == GenerationState.LOST

    def new_finding(self) -> Finding | None:
        """Nothing: the extractor reports what becomes of an iteration."""
        return None

    def release(self, iteration: Iteration) -> None:
        self._shard.apply(iteration)

    def rewind(self, iteration: Iteration) -> None:
        self._shard.apply(iteration)

    def close(self) -> None:
        self._shard.close()
