"""Which parameters share a DDP gradient bucket, and where the bytes of a bucket belong in the
model.

Sources: torch/csrc/distributed/c10d/reducer.cpp (compute_bucket_assignment_by_size,
Reducer::initialize_buckets), torch/nn/parallel/distributed.py (_ddp_init_helper).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from flowcheck.wire.training_job.learned_job import Parameter

FIRST_CAP_BYTES = 1 << 20
"""torch/csrc/distributed/c10d/reducer.hpp, kDefaultFirstBucketBytes."""
CAP_BYTES = 25 << 20
"""torch/nn/parallel/distributed.py, bucket_cap_mb."""
BROADCAST_CAP_BYTES = 250 << 20
"""torch/nn/parallel/distributed.py, broadcast_bucket_size."""

Buckets = tuple[tuple[int, ...], ...]
"""Parameter indices (registration order) of each bucket, in bucket order."""


@dataclass(frozen=True, slots=True)
class BucketPiece:
    """A run of bucket bytes and its place in the flat state, which has registration order."""

    bucket_byte: int
    state_byte: int
    size_bytes: int


class BucketLayout:
    """Where the bytes of one bucket belong. Inside a parameter bytes keep memory order, so a
    dense but permuted parameter is one plain range like any other."""

    def __init__(self, parameters: Sequence[Parameter], bucket: Sequence[int]) -> None:
        state = list(accumulate((p.nbytes for p in parameters), initial=0))
        self._starts: list[int] = []
        self._places: list[int] = []
        size = 0
        for index in bucket:
            if not parameters[index].nbytes:
                continue
            adjoins = self._starts and self._places[-1] + size - self._starts[-1] == state[index]
            if not adjoins:
                self._starts.append(size)
                self._places.append(state[index])
            size += parameters[index].nbytes
        self.size_bytes = size

    @property
    def runs(self) -> tuple[list[int], list[int]]:
        """(where each run begins in the bucket, its place in the state), ascending."""
        return self._starts, self._places

    def pieces(self, start_byte: int, size_bytes: int) -> list[BucketPiece]:
        """The range [start_byte, start_byte + size_bytes) of the bucket, cut where its place in
        the state jumps, ascending. Raises ValueError if it leaves the bucket."""
        stop = start_byte + size_bytes
        if start_byte < 0 or size_bytes < 0 or stop > self.size_bytes:
            raise ValueError(f"bytes [{start_byte}, {stop}) of a bucket of {self.size_bytes}")
        found: list[BucketPiece] = []
        run = bisect_right(self._starts, start_byte) - 1
        while start_byte < stop:
            last = run + 1 == len(self._starts)
            end = min(stop, self.size_bytes if last else self._starts[run + 1])
            place = self._places[run] + start_byte - self._starts[run]
            found.append(BucketPiece(start_byte, place, end - start_byte))
            start_byte, run = end, run + 1
        return found


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """One run of bytes behind the flat gradient."""

    place: int
    size_bytes: int

    @property
    def runs(self) -> tuple[list[int], list[int]]:
        """As of `BucketLayout`."""
        return ([0], [self.place]) if self.size_bytes else ([], [])

    def pieces(self, start_byte: int, size_bytes: int) -> list[BucketPiece]:
        """As `BucketLayout.pieces`; a line's slack at the end belongs nowhere."""
        size_bytes = min(start_byte + size_bytes, self.size_bytes) - start_byte
        return (
            [BucketPiece(start_byte, self.place + start_byte, size_bytes)] if size_bytes > 0 else []
        )


def assign_buckets(
    sizes_bytes: Sequence[int],
    caps_bytes: Sequence[int],
    *,
    groups: Sequence[Hashable] | None = None,
    order: Sequence[int] | None = None,
) -> Buckets:
    """Close a bucket with the tensor that fills its cap; each group (dtype and device) has its
    own open bucket and goes through `caps_bytes` on its own, the last cap for ever. `order`: the
    order in which tensors come; buckets then stay in closing order, those still open behind them,
    the group that came last first, else they are sorted by their first tensor.
    compute_bucket_assignment_by_size; its open buckets are in an unordered_map, which gives back
    first what went in last (libstdc++, as long as no two groups share a place)."""
    kinds = groups or [None] * len(sizes_bytes)
    open_buckets: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    closed: dict[Hashable, int] = {}
    buckets: list[tuple[int, ...]] = []
    for index in range(len(sizes_bytes)) if order is None else order:
        kind = kinds[index]
        open_buckets.setdefault(kind, []).append(index)
        filled[kind] = filled.get(kind, 0) + sizes_bytes[index]
        if filled[kind] >= caps_bytes[min(closed.get(kind, 0), len(caps_bytes) - 1)]:
            buckets.append(tuple(open_buckets.pop(kind)))
            closed[kind] = closed.get(kind, 0) + 1
            filled[kind] = 0
    buckets += [tuple(open_buckets[kind]) for kind in reversed(filled) if kind in open_buckets]
    return tuple(buckets if order is not None else sorted(buckets, key=min))


def first_buckets(parameters: Sequence[Parameter]) -> Buckets:
    """Iteration 0 without find_unused_parameters: one bucket per dtype, registration order; DDP
    hands the list of buckets over reversed."""
    sizes = [p.nbytes for p in parameters]
    return assign_buckets(sizes, [1 << 62], groups=_groups(parameters))[::-1]


def rebuilt_buckets(
    parameters: Sequence[Parameter],
    ready: Sequence[int] | None = None,
    caps_bytes: Sequence[int] = (FIRST_CAP_BYTES, CAP_BYTES),
) -> Buckets:
    """Later iterations if gradients became `ready` in that order; None: the reverse of the
    registration order, which is usual and only a guess."""
    order = range(len(parameters) - 1, -1, -1) if ready is None else ready
    sizes = [p.nbytes for p in parameters]
    return assign_buckets(sizes, caps_bytes, groups=_groups(parameters), order=order)


def find_unused_buckets(
    parameters: Sequence[Parameter], caps_bytes: Sequence[int] = (FIRST_CAP_BYTES, CAP_BYTES)
) -> Buckets:
    """Every iteration with find_unused_parameters: capped in registration order, then the list
    of buckets reversed, so that the small one is last."""
    sizes = [p.nbytes for p in parameters]
    return assign_buckets(sizes, caps_bytes, groups=_groups(parameters))[::-1]


def _groups(parameters: Sequence[Parameter]) -> list[Hashable]:
    return [(parameter.dtype, parameter.element_bytes) for parameter in parameters]
