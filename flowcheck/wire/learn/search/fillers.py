"""Where tensors end inside LL lines and LL128 groups, by which of what stands there is a number.

Gradients of one tensor have exponents near each other. What fills a line or group up behind a
chunk's end is mostly none of them: each size that is as large on the wire puts these ends
elsewhere, and one explains best, over all sends and all steps, where numbers end. Filler that looks
like numbers tells nothing, and then nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.collective_evidence import END_BY_NUMBERS
from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    CollectiveKind,
    Protocol,
    data_bytes_of,
)
from flowcheck.wire.collectives.send_table import same_sizes
from flowcheck.wire.learn.cuts.candidates import Op, schedules_of
from flowcheck.wire.learn.cuts.cut import Cut, Cuts
from flowcheck.wire.learn.cuts.place import unpacked
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.search.exponents import ANY_EXPONENT
from flowcheck.wire.learn.search.fills import (
    CHUNK_GRAIN_BYTES,
    Place,
    least_size,
    limits_of,
    most_size,
)

LEAST_NUMBERS = 64
"""Numbers of the tensor that others are held against."""
EXPONENTS = 128
"""Values of what is looked at of one: seven bits."""
MOST_TOLD = 5.0
"""Of one number, as a logarithm: a rare one may be there."""
SURE = 7.0
"""Logarithm of how much likelier a size must be than any other."""
MOST_BUCKETS = 8
"""Of one iteration that fill as many lines."""


MOST_AT_ONCE = 256
"""Sizes looked at one by one at once."""


@dataclass(frozen=True, slots=True)
class _Told:
    """Of one all-reduce."""

    ends: Mapping[Place, NDArray[np.float64]]
    """{send: [numbers in it] how likely it is that it ends there, as a logarithm}"""


def by_numbers(cuts: Cuts) -> Cuts:
    """All-reduces read from sizes alone, of the size that their numbers bear out."""
    by_op: dict[Op, list[Cut]] = {}
    for cut in cuts.found:
        op = cut.op
        if op.kind is CollectiveKind.ALL_REDUCE and op.slack_is_open and not op.end and not op.tree:
            by_op.setdefault(op, []).append(cut)
    better: dict[int, Cut] = {}
    for op, alike in by_op.items():
        for cut, size in zip(alike, _sizes(op, alike, cuts.ring), strict=True):
            if size:
                other = replace(op, work_bytes=size, end=END_BY_NUMBERS())
                better[id(cut)] = cut.as_op(other, cuts.ring)
    return replace(cuts, found=tuple(better.get(id(cut), cut) for cut in cuts.found))


def _sizes(op: Op, alike: Sequence[Cut], ring: Ring) -> list[int]:
    """[cut] the size; 0: nothing tells it."""
    none = [0] * len(alike)
    each = _element_bytes(alike, ring)
    told = [_told(cut, ring, each) for cut in alike] if each else []
    if not any(one.ends for one in told):
        return none
    low, high = least_size(op, alike[0], ring), most_size(op, alike[0], ring)
    table = _Table(op, alike[0], ring, each)
    sizes = table.sizes(low, high, told)
    if len(sizes) < 2:
        return none
    scores = np.array([table.scores(sizes, one) for one in told])
    alone = scores.max(axis=1).sum()
    for period in range(1, min(MOST_BUCKETS, len(alike)) + 1):
        rows = [scores[i::period].sum(axis=0) for i in range(period)]
        if sum(row.max() for row in rows) >= alone - SURE * len(alike):
            best = [_best(row, sizes, full=op.protocol is Protocol.LL) for row in rows]
            return [best[i % period] for i in range(len(alike))]
    return none


def _best(row: NDArray[np.float64], sizes: Sequence[int], *, full: bool) -> int:
    """The largest one tells little: perhaps nothing stands behind it, perhaps numbers of another
    tensor. full: of a line, which mostly is, it is believed."""
    order = np.argsort(row)
    size = sizes[int(order[-1])]
    sure = row[order[-1]] - row[order[-2]] >= SURE
    return size if sure and (full or size < sizes[-1]) else 0


class _Table:
    """What each size puts where."""

    def __init__(self, op: Op, cut: Cut, ring: Ring, each: int) -> None:
        self._op, self._cut, self._ring, self._each = op, cut, ring, each
        self._ends: dict[int, dict[Place, int] | None] = {}

    def ends(self, size: int) -> dict[Place, int] | None:
        """{send: its data bytes}; None where a size on the wire would be another."""
        if size not in self._ends:
            op = replace(self._op, work_bytes=size)
            schedules = schedules_of(op, self._cut.rules[0], self._ring)
            same = size > 0 and same_sizes(schedules, self._cut.schedules)
            self._ends[size] = (
                {
                    (e, channel, i): send.data_bytes
                    for e, edge in enumerate(schedules)
                    for channel, sends in enumerate(edge)
                    for i, send in enumerate(sends)
                }
                if same
                else None
            )
        return self._ends[size]

    def sizes(self, low: int, high: int, told: Sequence[_Told]) -> list[int]:
        """Those near the likeliest of each, one by one: chunks but the last one of a loop grow by
        steps, so that what is likely lies together."""
        coarse = CHUNK_GRAIN_BYTES * self._ring.ranks
        around: Sequence[range] = [range(low, high + 1)]
        if high - low > MOST_AT_ONCE * self._each:
            first = [n for n in range(low, high + coarse, coarse) if self.ends(n) is not None]
            best = {first[int(np.argmax(self.scores(first, one)))] for one in told if first}
            around = [range(n - 2 * coarse, n + 2 * coarse) for n in best]
        found = {size for span in around for size in span if not size % self._each}
        return sorted(n for n in found if low <= n <= high and self.ends(n) is not None)

    def scores(self, sizes: Sequence[int], told: _Told) -> list[float]:
        return [
            sum(
                float(likely[min(at // self._each, len(likely) - 1)])
                for place, at in (self.ends(size) or {}).items()
                if (likely := told.ends.get(place)) is not None
            )
            for size in sizes
        ]


def _sends(cut: Cut, ring: Ring) -> list[tuple[Place, NDArray[np.uint8], int]]:
    """(send, its data and what fills it up, data bytes that are sure to be there)."""
    grain = GRAIN_BYTES[cut.op.protocol]
    found = []
    for e, (edge, at, names, schedule) in enumerate(
        zip(ring.edges, cut.starts, cut.channels, cut.schedules, strict=True)
    ):
        for stream, number, channel in zip(edge.streams, at, names, strict=True):
            for i, send in enumerate(schedule[channel] if channel is not None else ()):
                seen = stream.sends.get(number + i)
                if seen is not None and send.data_bytes:
                    room = data_bytes_of(cut.op.protocol, send.wire_bytes)
                    data, mask = unpacked(seen, cut.op.protocol, room)
                    if mask.all():
                        found.append(((e, send.channel, i), data, room - grain))
    return found


def _element_bytes(alike: Sequence[Cut], ring: Ring) -> int:
    """Of numbers whose exponents are near each other; 0: they are not."""
    sure = [data[:until] for cut in alike[:4] for _, data, until in _sends(cut, ring) if until > 0]
    words = np.concatenate([d[: len(d) // 4 * 4] for d in sure] or [np.zeros(0, np.uint8)])
    words = words.reshape(-1, 4)
    words = words[words.any(axis=1)]
    if len(words) < LEAST_NUMBERS:
        return 0
    spans = [int(np.ptp(words[:, place] & 0x7F)) for place in (1, 3)]
    if spans[1] >= ANY_EXPONENT:
        return 0
    return 2 if spans[0] < ANY_EXPONENT else 4


def _told(cut: Cut, ring: Ring, each: int) -> _Told:
    sends = _sends(cut, ring)
    sure = [data[: until // each * each] for _, data, until in sends if until > 0]
    if not sure:
        return _Told({})
    numbers = np.concatenate(sure).reshape(-1, each)
    exponents = numbers[numbers.any(axis=1)][:, each - 1] & 0x7F
    if len(exponents) < LEAST_NUMBERS:
        return _Told({})
    known = np.bincount(exponents, minlength=EXPONENTS) + 0.5
    # How much likelier each exponent is of a number than of anything.
    gains = np.log(known / known.sum() * EXPONENTS).clip(-MOST_TOLD, MOST_TOLD)
    ends = {}
    limits = limits_of(cut, ring)
    for place, data, until in sends:
        part = data[: len(data) // each * each].reshape(-1, each)
        gain = np.where(part.any(axis=1), gains[part[:, each - 1] & 0x7F], 0.0)
        gain[: max(0, until) // each] = 0.0
        gain[limits.get(place, len(data)) // each :] = -MOST_TOLD
        ends[place] = np.concatenate([[0.0], np.cumsum(gain)])
    return _Told(ends)
