"""Buckets of find_unused_parameters, of which no plan is sent, by the sizes of iteration 0.

They are parameters in registration order, the last ones first. Sizes on the wire hardly tell where
an LL128 tensor ends, and an LL one within its last line, so every cut of the parameters that gives
them is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flowcheck.wire.learn.cuts.candidates import Op, schedules_of
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.terms import GRAIN_BYTES, Protocol

Buckets = tuple[tuple[int, ...], ...]
MOST_WAYS = 64
"""Cuts of the parameters looked at; with as many, nothing tells which it is."""


def slack_bytes(ring: Ring, protocol: Protocol) -> int:
    """Tensors whose sizes differ by less may look alike: every chunk of the last loop may lack most
    of an LL128 group; in LL only the tensor's end is off."""
    chunks = ring.ranks * ring.channels if protocol is Protocol.LL128 else 1
    return GRAIN_BYTES[protocol] * chunks


def runs(sizes: Sequence[int], stop: int, most: int) -> Iterator[tuple[int, int]]:
    """(first parameter, bytes) of every run of parameters before `stop` of at most `most` bytes.
    sizes: [parameter] bytes. One of no bytes begins none, as nothing tells where it lies."""
    total = 0
    for start in reversed(range(stop)):
        total += sizes[start]
        if total > most:
            return
        if sizes[start] or not start:
            yield start, total


def before(stops: frozenset[int], cut: Cut, ring: Ring, sizes: Sequence[int]) -> frozenset[int]:
    """Where what is left may end once `cut` is reduced too, if it ended at one of `stops`."""
    most = cut.op.work_bytes + slack_bytes(ring, cut.op.protocol)
    found = ((start, size) for stop in stops for start, size in runs(sizes, stop, most))
    return frozenset(start for start, size in found if resized(cut, size, ring) is not None)


def plan_of(parts: Sequence[Cut], ring: Ring, sizes: Sequence[int]) -> Buckets:
    """The only buckets that those all-reduces can be; () where there are none, or several."""
    ways: dict[int, list[Buckets]] = {len(sizes): [()]}
    for cut in parts:
        most = cut.op.work_bytes + slack_bytes(ring, cut.op.protocol)
        later: dict[int, list[Buckets]] = {}
        for stop, known in ways.items():
            for start, size in runs(sizes, stop, most):
                if resized(cut, size, ring) is not None:
                    more = [(*way, tuple(range(start, stop))) for way in known]
                    later[start] = (later.get(start, []) + more)[:MOST_WAYS]
        ways = later
    found = ways.get(0, [])
    if len(found) in (1, MOST_WAYS):
        return found[0] if len(found) == 1 else ()
    capped = [way for way in found if _capped(way, sizes)]
    return capped[0] if len(capped) == 1 else ()


def _capped(buckets: Buckets, sizes: Sequence[int]) -> bool:
    """One cap closes all of them: with the parameter that reaches it, and not before. The first in
    registration order has one of its own, the last one may have reached none."""
    least, most = 0, 1 << 62
    for number, bucket in enumerate(buckets[:-1]):
        total = sum(sizes[i] for i in bucket)
        least = max(least, total - sizes[bucket[-1]] + 1)
        most = min(most, total) if number else most
    return least <= most


def resized(cut: Cut, size: int, ring: Ring) -> Cut | None:
    """`cut` as a tensor of `size` bytes; None if that would be another one on the wire."""
    if size == cut.op.work_bytes:
        return cut
    if not size:
        return None
    return reread(cut, replace(cut.op, work_bytes=size), ring)


def reread(cut: Cut, op: Op, ring: Ring) -> Cut | None:
    """The sends of `cut` as those of `op`; None if that would be others on the wire."""
    schedules = schedules_of(op, cut.rules[0], ring)
    if _on_wire(schedules) != _on_wire(cut.schedules):
        return None
    return replace(cut, op=op, schedules=schedules)


def _on_wire(schedules: Sequence[Sequence[Sequence[object]]]) -> list[list[list[int]]]:
    """[edge][channel][send] bytes."""
    return [[[s.wire_bytes for s in channel] for channel in edge] for edge in schedules]  # type: ignore[attr-defined]
