"""The end of a tensor inside its last LL line, where no plan tells the size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowcheck.wire.learn.candidates import Op, schedule_of
from flowcheck.wire.learn.cut import Cut, Cuts
from flowcheck.wire.learn.place import unpacked
from flowcheck.wire.learn.rings import Ring
from flowcheck.wire.schedule import Schedule
from flowcheck.wire.terms import Kind, Protocol

WORD_BYTES = 4
"""Half of an LL line's data; the size of the common element types."""


def tightened(cuts: Cuts) -> Cuts:
    """All-reduces read from sizes alone lose their last word where every copy, partial sums
    included, has zero there each time: more likely padding than data. Sizes fit both ways."""
    ring = cuts.ring
    by_op: dict[Op, list[Cut]] = {}
    for cut in cuts.found:
        if cut.op.slack_is_open and cut.op.kind is Kind.ALL_REDUCE:
            by_op.setdefault(cut.op, []).append(cut)
    better: dict[int, Cut] = {}
    for op, alike in by_op.items():
        less = replace(op, work_bytes=op.work_bytes - WORD_BYTES)
        if op.protocol is not Protocol.LL or op.work_bytes % 8 or less.work_bytes <= 0:
            continue
        if all(_ends_in_zero(cut, ring) for cut in alike):
            for cut in alike:
                shorter = _resized(cut, ring, less)
                if shorter is not None:
                    better[id(cut)] = shorter
    return replace(cuts, found=tuple(better.get(id(cut), cut) for cut in cuts.found))


def _ends_in_zero(cut: Cut, ring: Ring) -> bool:
    """Some copy of the last word was seen, and every one is zero."""
    seen_one = False
    for stream, number, send in cut.sends(ring):
        last = send.data_bytes and send.start_byte + send.data_bytes == cut.op.work_bytes
        seen = stream.sends.get(number)
        if not last or seen is None:
            continue
        data, mask = unpacked(seen, cut.op.protocol, send.data_bytes)
        if mask[-WORD_BYTES:].all():
            seen_one = True
            if data[-WORD_BYTES:].any():
                return False
    return seen_one


def _resized(cut: Cut, ring: Ring, op: Op) -> Cut | None:
    """The cut with another total; None if that changes a size on the wire."""
    schedules = tuple(
        schedule_of(op, cut.rules[0], ring.ranks, ring.channels, e.sender, ring.extra_sends)
        for e in ring.edges
    )
    sizes = _wire_sizes(schedules)
    return replace(cut, op=op, schedules=schedules) if sizes == _wire_sizes(cut.schedules) else None


def _wire_sizes(schedules: Sequence[Schedule]) -> list[list[list[int]]]:
    return [[[s.wire_bytes for s in c] for c in e] for e in schedules]
