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
"""Default size of the first bucket, bytes: torch/csrc/distributed/c10d/reducer.hpp,
kDefaultFirstBucketBytes."""
CAP_BYTES = 25 << 20
"""Default bucket size, bytes: torch/nn/parallel/distributed.py, bucket_cap_mb."""
BROADCAST_CAP_BYTES = 250 << 20
"""Largest broadcast of weights or buffers, bytes: torch/nn/parallel/distributed.py,
broadcast_bucket_size."""

Buckets = tuple[tuple[int, ...], ...]
"""Parameter indices (registration order) of each bucket, in bucket order."""


@dataclass(frozen=True, slots=True)
class BucketPiece:
    """A run of bucket bytes and its offset in the flat gradient, which has registration order."""

    bucket_byte: int
    state_byte: int
    size_bytes: int


class BucketLayout:
    """Maps the bytes of one bucket to the flat gradient. Bytes of a parameter keep their memory
    order, so a dense permuted parameter is one contiguous range."""

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
        """The range [start_byte, start_byte + size_bytes) of the bucket as runs that are
        contiguous in the flat gradient, ascending. Raises ValueError for a range outside the
        bucket."""
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
    """A contiguous range of `size_bytes` bytes at offset `place`, after the flat gradient, for
    broadcast buffers."""

    place: int
    size_bytes: int

    @property
    def runs(self) -> tuple[list[int], list[int]]:
        """As of `BucketLayout`."""
        return ([0], [self.place]) if self.size_bytes else ([], [])

    def pieces(self, start_byte: int, size_bytes: int) -> list[BucketPiece]:
        """As `BucketLayout.pieces`; padding after the end of the buffers is dropped."""
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
    """Assigns tensors to buckets as torch does (reducer.cpp, compute_bucket_assignment_by_size).

    sizes_bytes: [tensors] bytes.
    caps_bytes: size limits of the first, second, ... bucket; the last one holds for all later
    buckets. A bucket closes with the tensor that reaches its limit.
    groups: [tensors] dtype and device; each group has its own open bucket and its own sequence of
    limits. None: one group.
    order: order in which tensors are assigned. With it, buckets are in closing order, then those
    still open, the latest group first: torch iterates over an unordered_map, which libstdc++
    traverses in reverse order of insertion (unless two groups share a hash bucket). None:
    registration order; buckets are sorted by their first tensor.
    """
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
    """Buckets of iteration 0 without find_unused_parameters: one per dtype in registration order;
    DDP reverses the list of buckets."""
    sizes = [p.nbytes for p in parameters]
    return assign_buckets(sizes, [1 << 62], groups=_groups(parameters))[::-1]


def rebuilt_buckets(
    parameters: Sequence[Parameter],
    ready: Sequence[int] | None = None,
    caps_bytes: Sequence[int] = (FIRST_CAP_BYTES, CAP_BYTES),
) -> Buckets:
    """Buckets of the later iterations (reducer.cpp, rebuild_buckets). ready: order in which
    gradients become ready; None: reverse registration order, which is usual but only a guess."""
    order = range(len(parameters) - 1, -1, -1) if ready is None else ready
    sizes = [p.nbytes for p in parameters]
    return assign_buckets(sizes, caps_bytes, groups=_groups(parameters), order=order)


def find_unused_buckets(
    parameters: Sequence[Parameter], caps_bytes: Sequence[int] = (FIRST_CAP_BYTES, CAP_BYTES)
) -> Buckets:
    """Buckets of every iteration with find_unused_parameters: assigned in registration order, then
    the list is reversed, so that the small first one comes last."""
    sizes = [p.nbytes for p in parameters]
    return assign_buckets(sizes, caps_bytes, groups=_groups(parameters))[::-1]


def _groups(parameters: Sequence[Parameter]) -> list[Hashable]:
    return [(parameter.dtype, parameter.element_bytes) for parameter in parameters]
