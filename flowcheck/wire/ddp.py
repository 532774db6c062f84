"""What torch's DistributedDataParallel says on the wire, and how its buckets hold parameters.

At start-up the ranks compare parameter counts and shapes and rank 0 sends its weights; at the
second forward rank 0 sends the bucket plan that holds from then on.

Sources: torch/csrc/distributed/c10d/reducer.cpp (verify_params_across_processes,
sync_bucket_indices, compute_bucket_assignment_by_size), torch/nn/parallel/distributed.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from flowcheck.wire.job import Parameter

DEFAULT_CAP_BYTES = 25 << 20
FIRST_CAP_BYTES = 1 << 20
"""torch/nn/parallel/distributed.py bucket_cap_mb; c10d/reducer.hpp kDefaultFirstBucketBytes."""

Buckets = tuple[tuple[int, ...], ...]
"""Parameter indices (registration order) of each bucket, in bucket order."""


@dataclass(frozen=True, slots=True)
class Piece:
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

    def pieces(self, start_byte: int, size_bytes: int) -> list[Piece]:
        """The range [start_byte, start_byte + size_bytes) of the bucket, cut where its place in
        the state jumps, ascending. Raises ValueError if it leaves the bucket."""
        stop = start_byte + size_bytes
        if start_byte < 0 or size_bytes < 0 or stop > self.size_bytes:
            raise ValueError(f"bytes [{start_byte}, {stop}) of a bucket of {self.size_bytes}")
        found: list[Piece] = []
        run = bisect_right(self._starts, start_byte) - 1
        while start_byte < stop:
            last = run + 1 == len(self._starts)
            end = min(stop, self.size_bytes if last else self._starts[run + 1])
            place = self._places[run] + start_byte - self._starts[run]
            found.append(Piece(start_byte, place, end - start_byte))
            start_byte, run = end, run + 1
        return found
