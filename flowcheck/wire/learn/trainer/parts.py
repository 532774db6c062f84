"""Buckets of find_unused_parameters, of which no plan is sent, by the sizes of iteration 0.

They are parameters of one dtype in registration order; the bucket whose first parameter comes last
is reduced first. Sizes on the wire hardly tell where an LL128 tensor ends, and an LL one within its
last line, so every cut of the parameters that gives them is looked at.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, Protocol
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring

Buckets = tuple[tuple[int, ...], ...]
MOST_WAYS = 64
"""Cuts of the parameters looked at; with as many, nothing tells which it is."""

Left = tuple[int, ...]
"""[group] parameters not reduced yet; (): all."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """All gradients as a bucket may hold them."""

    sizes: tuple[int, ...]
    """[parameter] bytes of the parameter itself: buckets are closed by these."""
    reduced: tuple[int, ...]
    """[parameter] bytes of its gradient in a bucket."""
    each: tuple[int, ...]
    """[parameter] the same of an element."""
    groups: Buckets
    """Parameters of each dtype."""

    @classmethod
    def of(
        cls,
        counts: Sequence[int],
        own: Sequence[int],
        each: Sequence[int],
        kinds: Sequence[Hashable],
    ) -> Gradients:
        """[parameter] elements, bytes of one, those of its gradient's, dtype."""
        every = range(len(counts))
        groups = tuple(tuple(i for i in every if kinds[i] == k) for k in dict.fromkeys(kinds))
        sizes = tuple(count * size for count, size in zip(counts, own, strict=True))
        reduced = tuple(count * size for count, size in zip(counts, each, strict=True))
        return cls(sizes, reduced, tuple(each), groups)

    @property
    def whole(self) -> Left:
        return tuple(map(len, self.groups))

    def runs(self, left: Left, most: int) -> Iterator[Run]:
        """The buckets of at most `most` bytes that may come next. One of no bytes begins none, as
        nothing tells where it lies."""
        behind = [own[n] for own, n in zip(self.groups, left, strict=True) if n < len(own)]
        last = min(behind, default=len(self.sizes))
        for group, own in enumerate(self.groups):
            total = 0
            for at in reversed(range(left[group])):
                total += self.reduced[own[at]]
                if total > most:
                    break
                if own[at] < last and (self.reduced[own[at]] or not at):
                    after = (*left[:group], at, *left[group + 1 :])
                    yield Run(after, group, at, left[group], total, self.each[own[at]])


@dataclass(frozen=True, slots=True)
class Run:
    """Parameters of a group next to each other, as a bucket."""

    left: Left
    """Once it is reduced."""
    group: int
    start: int
    stop: int
    """In the group."""
    size: int
    type_bytes: int


def slack_bytes(ring: Ring, protocol: Protocol) -> int:
    """Tensors whose sizes differ by less may look alike: every chunk of the last loop may lack most
    of an LL128 group; in LL only the tensor's end is off."""
    chunks = ring.ranks * ring.channels if protocol is Protocol.LL128 else 1
    return GRAIN_BYTES[protocol] * chunks


def before(stops: frozenset[Left], cut: Cut, ring: Ring, gradients: Gradients) -> frozenset[Left]:
    """What may be left once `cut` is reduced too, if that was one of `stops`."""
    most = cut.op.work_bytes + slack_bytes(ring, cut.op.protocol)
    found = (run for left in stops for run in gradients.runs(left, most))
    return frozenset(
        run.left for run in found if resized(cut, run.size, ring, run.type_bytes) is not None
    )


def plan_of(parts: Sequence[Cut], ring: Ring, gradients: Gradients) -> Buckets:
    """The only buckets that those all-reduces can be; () where there are none, or several."""
    found = ways_of(parts, ring, gradients)
    return found[0] if len(found) == 1 else ()


def ways_of(parts: Sequence[Cut], ring: Ring, gradients: Gradients) -> list[Buckets]:
    """Buckets that those all-reduces can be, MOST_WAYS at most; where one cap closes all buckets of
    some of them, only those."""
    ways: dict[Left, list[Buckets]] = {gradients.whole: [()]}
    for cut in parts:
        most = cut.op.work_bytes + slack_bytes(ring, cut.op.protocol)
        later: dict[Left, list[Buckets]] = {}
        for left, known in ways.items():
            for run in gradients.runs(left, most):
                if resized(cut, run.size, ring, run.type_bytes) is not None:
                    bucket = gradients.groups[run.group][run.start : run.stop]
                    more = [(*way, bucket) for way in known]
                    later[run.left] = (later.get(run.left, []) + more)[:MOST_WAYS]
        ways = later
    found = ways.get((0,) * len(gradients.groups), [])
    if len(found) in (0, 1, MOST_WAYS):
        return found
    return [way for way in found if _capped(way, gradients)] or found


def _capped(buckets: Buckets, gradients: Gradients) -> bool:
    """One cap closes all of them: with the parameter that reaches it, and not before. The first of
    each dtype in registration order has another one, the last one may have reached none."""
    (first_least, first_most), (least, most) = caps_of(buckets, gradients)
    return least <= most and first_least <= first_most


def caps_of(buckets: Buckets, gradients: Gradients) -> tuple[tuple[int, int], tuple[int, int]]:
    """(least, most) bytes at which the first bucket of each dtype was closed, and all others."""
    sizes, least, most = gradients.sizes, 0, 1 << 62
    first_least, first_most = 0, 1 << 62
    for group in gradients.groups:
        own = [bucket for bucket in reversed(buckets) if bucket[0] in group]
        for number, bucket in enumerate(own):
            total = sum(sizes[i] for i in bucket)
            low, high = total - sizes[bucket[-1]] + 1, total
            if number == len(own) - 1:
                high = 1 << 62
            if number:
                least, most = max(least, low), min(most, high)
            else:
                first_least, first_most = max(first_least, low), min(first_most, high)
    return (first_least, first_most), (least, most)


def resized(cut: Cut, size: int, ring: Ring, type_bytes: int) -> Cut | None:
    """`cut` as a tensor of `size` bytes; None if that would be another one on the wire."""
    if (size, type_bytes) == (cut.op.work_bytes, cut.op.type_bytes):
        return cut
    if not size or (cut.op.type_bytes and size % cut.op.type_bytes):
        return None
    if abs(size - cut.op.work_bytes) >= slack_bytes(ring, cut.op.protocol):
        return None
    return cut.reread(replace(cut.op, work_bytes=size, type_bytes=type_bytes), ring)
