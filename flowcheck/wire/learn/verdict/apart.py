"""Weights of several dtypes, which are broadcast apart, put back together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, LL_LINE_DATA_BYTES
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.learn.reading import Collective, DifferingBytes
from flowcheck.wire.learn.trainer.grammar import Habits
from flowcheck.wire.traffic.observed_messages import Range


@dataclass(frozen=True, slots=True)
class Sent:
    """What the start-up broadcasts held."""

    parameters: NDArray[np.uint8]
    """Those that take gradients, back to back in registration order."""
    missing: tuple[Range, ...]
    """Which bytes of them were not seen."""
    beside: NDArray[np.uint8]
    """All else that the stated model has, back to back in its order."""
    whole: bool
    """All of that was seen."""
    differing: tuple[DifferingBytes, ...] = ()
    """As of `Weights`."""


def in_registration_order(habits: Habits, parts: Sequence[Collective]) -> Sent:
    """What of them is which tensor's. parts: the start-up broadcasts, one of each piece first."""
    counts = habits.shapes[0].counts
    sizes = [count * each for count, each in zip(counts, habits.each, strict=True)]
    sent = habits.types.sent if habits.types is not None else ()
    trains = [tensor.has_gradient for tensor in sent] or [True] * len(sizes)
    held = [tensor.wire.nbytes for tensor in sent] or sizes
    at = {True: 0, False: 0}
    starts = []
    for own, size in zip(trains, held, strict=True):
        starts.append(at[own])
        at[own] += size
    result = {own: np.zeros(size, np.uint8) for own, size in at.items()}
    seen = {own: np.zeros(size, bool) for own, size in at.items()}
    differing: list[DifferingBytes] = []
    for part, (indices, _) in zip(parts, habits.pieces, strict=False):
        covered = np.ones(part.bytes, bool)
        for begin, end in part.missing:
            covered[begin:end] = False
        place = 0
        for index in indices:
            whose, size = trains[index], held[index]
            here = slice(starts[index], starts[index] + size)
            own_bytes = slice(place, place + size)
            count = len(part.result[own_bytes])
            result[whose][here][:count] = part.result[own_bytes]
            seen[whose][here][:count] = covered[own_bytes]
            for one in part.differing if whose else ():
                first, last = max(one.start, place), min(one.start + len(one.first), place + size)
                cut = slice(first - one.start, last - one.start)
                if first < last:
                    at_first = starts[index] + first - place
                    differing.append(DifferingBytes(at_first, one.first[cut], one.later[cut]))
            place += size
    edges = np.flatnonzero(np.diff(np.concatenate([[True], seen[True], [True]]).astype(np.int8)))
    missing = tuple(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    return Sent(result[True], missing, result[False], bool(seen[False].all()), tuple(differing))


LEAST_FORWARDS = 3
"""The first one sends what the start-up did, whatever the model."""


def still(
    habits: Habits, beside: NDArray[np.uint8], later: Sequence[Collective]
) -> tuple[tuple[int, ...], int]:
    """(which of the stated model's buffers, by their number among them, every forward that was seen
    sent as the start-up did, how many forwards that are). later: the broadcasts behind those of the
    start-up."""
    sent = habits.types.sent if habits.types is not None else ()
    begins: list[bytes] = []
    at = 0
    for tensor in sent:
        if tensor.buffer:
            begins.append(beside[at : at + tensor.wire.nbytes].tobytes())
        at += 0 if tensor.has_gradient else tensor.wire.nbytes
    wires = [tensor.wire for tensor in sent if tensor.buffer]
    pieces = ddp_messages.weight_broadcasts([w.nbytes for w in wires], [w.dtype for w in wires])
    same, forwards = set(range(len(wires))), 0
    for first in range(0, len(later) - len(pieces) + 1, max(1, len(pieces))):
        own = later[first : first + len(pieces)]
        if not pieces or not all(
            0 <= one.bytes - size < max(GRAIN_BYTES[one.protocol], LL_LINE_DATA_BYTES)
            for one, (_, size) in zip(own, pieces, strict=True)
        ):
            break
        forwards += 1
        for one, (numbers, _) in zip(own, pieces, strict=True):
            place = 0
            for number in numbers:
                size = len(begins[number])
                if one.result[place : place + size].tobytes() != begins[number] or one.missing:
                    same.discard(number)
                place += size
    return (tuple(sorted(same)), forwards) if forwards >= LEAST_FORWARDS else ((), forwards)


def whole(habits: Habits, parts: Sequence[Collective]) -> bool:
    """Every piece was broadcast, and nothing about it is in doubt."""
    pieces = habits.pieces
    return len(parts) >= len(pieces) and not any(
        part.doubtful or part.contradictory or part.bytes < size
        for part, (_, size) in zip(parts, pieces, strict=False)
    )


def beside(habits: Habits, parts: Sequence[Collective], line_bytes: int) -> int:
    """Bytes among the weights that are neither parameters nor the buffers that the first forward
    broadcasts by themselves: frozen parameters, wherever they lie."""
    pieces = habits.pieces
    later = [part.bytes for part in parts[len(pieces) :]]
    for part, (_, size) in zip(parts, pieces, strict=False):
        rest = part.bytes - size
        if rest >= line_bytes and not any(abs(one - rest) < line_bytes for one in later):
            return rest
    return 0
