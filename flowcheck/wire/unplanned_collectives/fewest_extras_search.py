"""Searches for the reading of a message stream that leaves out the fewest extra collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from flowcheck.step_numbers import Iteration
from flowcheck.wire.traffic.observed_messages import NOT_ARRIVED
from flowcheck.wire.unplanned_collectives.extra_collectives import (
    ExtraCollectives,
    LaneSizes,
    MessageSizeAt,
)

EXTRAS_MAX = 256
"""Collectives left out at most. A choice that bounds time."""
EXPANDED_MAX = 512
"""Places at which extra collectives are looked for, milliseconds each: the stage must not stall. A
choice: more may explain more."""

LanePositions = tuple[int, ...]
"""[lane] number of the next message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStream:
    """What is known of the messages, by (lane, message number)."""

    size: MessageSizeAt
    pinned: Callable[[int, int], int | None]
    """Which message of the plan it was placed as, where its bytes are in the shard."""
    planned_place: Callable[[int, Iteration, int], int]
    """(lane, iteration, bucket op) -> which message of the plan that op begins with."""


class StreamMatch(IntEnum):
    NO = 0
    OPEN = 1
    """As far as messages have come."""
    YES = 2


@dataclass(slots=True)
class SearchState:
    """Somewhere in a reading: `index` buckets done, the next messages at `at`."""

    index: int
    at: LanePositions
    before: SearchState | None = field(repr=False, default=None)
    bucket: bool = False
    """A bucket led here, not an extra collective."""
    open: bool = False
    ambiguous: bool = False
    """Another reading with as few extras comes here too."""
    extras: int = 0


class FewestExtrasSearch:
    """One search; `blocked` says afterwards whether a placed message forbade a reading."""

    def __init__(
        self,
        buckets: Sequence[LaneSizes],
        extras: ExtraCollectives,
        stream: KnownStream,
        iteration: Iteration,
        *,
        pins: bool,
    ) -> None:
        """buckets: of one iteration, in order; iteration: of the
        first one; pins: what was placed stays."""
        self._buckets, self._extras, self._stream = buckets, extras, stream
        self._iteration, self._pins = iteration, pins
        self._seen: set[tuple[int, LanePositions]] = set()
        self._expanded = 0
        self.blocked = False

    def run(self, start: SearchState, target: int) -> SearchState | None:
        """The state with `target` buckets done after the fewest extras; None: there is none."""
        layer = [start]
        for extras in range(EXTRAS_MAX + 1):
            reached, goal = self._through_buckets(layer, target)
            if goal is not None:
                goal.extras = extras
                return goal
            self._expanded += len(reached)
            layer = list(self._through_extras(reached))
            if not layer or self._expanded > EXPANDED_MAX:
                break
        return None

    def _through_buckets(
        self, layer: Sequence[SearchState], target: int
    ) -> tuple[list[SearchState], SearchState | None]:
        """All that follows without an extra, furthest first; and the first one at the target."""
        known: dict[tuple[int, LanePositions], SearchState] = {}
        goal: SearchState | None = None
        for begun in layer:
            state: SearchState | None = begun
            while state is not None and (state.index, state.at) not in self._seen:
                twin = known.setdefault((state.index, state.at), state)
                if twin is not state:
                    twin.ambiguous = True
                    break
                if state.index >= target:
                    goal = goal or state
                    break
                state = self._bucket_at(state)
        self._seen.update(known)
        return sorted(known.values(), key=lambda s: -s.index), goal

    def _bucket_at(self, state: SearchState) -> SearchState | None:
        lap, nth = divmod(state.index, len(self._buckets))
        sizes = self._buckets[nth]
        fit = fits(self._stream, state.at, sizes)
        if fit is StreamMatch.NO:
            return None
        for lane, at in enumerate(state.at):
            due = self._stream.planned_place(lane, Iteration(self._iteration + lap), nth)
            for ahead in range(len(sizes[lane])):
                pin = self._stream.pinned(lane, at + ahead) if self._pins else None
                if pin is not None and pin != due + ahead:
                    self.blocked = True
                    return None
        is_open = state.open or fit is StreamMatch.OPEN
        return SearchState(state.index + 1, after(state.at, sizes), state, True, is_open)

    def _through_extras(self, reached: Sequence[SearchState]) -> Iterator[SearchState]:
        for state in reached:
            for sizes in self._extras.at(state.at, self._stream.size):
                fit = fits(self._stream, state.at, sizes)
                if fit is StreamMatch.NO or all_absent(self._stream, state.at, sizes):
                    continue
                if self._pins and self._placed(state.at, sizes):
                    self.blocked = True
                    continue
                is_open = state.open or fit is StreamMatch.OPEN
                yield SearchState(state.index, after(state.at, sizes), state, False, is_open)

    def _placed(self, at: LanePositions, sizes: LaneSizes) -> bool:
        return any(
            self._stream.pinned(lane, first + ahead) is not None
            for lane, first in enumerate(at)
            for ahead in range(len(sizes[lane]))
        )


def fits(stream: KnownStream, at: LanePositions, sizes: Sequence[Sequence[int]]) -> StreamMatch:
    fit = StreamMatch.YES
    for lane, due in enumerate(sizes):
        for ahead, size in enumerate(due):
            seen = stream.size(lane, at[lane] + ahead)
            if seen == NOT_ARRIVED:
                fit = StreamMatch.OPEN
                break
            if seen is not None and seen != size:
                return StreamMatch.NO
    return fit


def all_absent(stream: KnownStream, at: LanePositions, sizes: Sequence[Sequence[int]]) -> bool:
    return all(
        stream.size(lane, at[lane]) == NOT_ARRIVED for lane, due in enumerate(sizes) if len(due)
    )


def run_fits(stream: KnownStream, lane: int, at: int, whole: Sequence[int]) -> bool:
    sizes = (stream.size(lane, at + n) for n in range(len(whole)))
    fit = all(seen in (None, due) for seen, due in zip(sizes, whole, strict=True))
    return fit and all(stream.pinned(lane, at + n) is None for n in range(len(whole)))


def after(at: LanePositions, sizes: Sequence[Sequence[int]]) -> LanePositions:
    return tuple(a + len(due) for a, due in zip(at, sizes, strict=True))
