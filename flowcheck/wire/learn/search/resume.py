"""Go on reading where a gap, or the start of the capture, hides where collectives begin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flowcheck.findings.catalog.collective_evidence import BEGINNING_SHIFTED
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.collectives.send_table import no_sends
from flowcheck.wire.learn.cuts.candidates import Op, Positions, schedules_of
from flowcheck.wire.learn.cuts.cut import HASTY, Cut, Cuts, Purse, State, cut_stream
from flowcheck.wire.learn.cuts.match import agreeing
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer.grammar import Trainer

MOST_STARTS = 24
"""Sends skipped at most, looking for the start of a collective."""
MOST_RESUMES = 3
SKIP_COST = 1.0
UNREAD_COST = 4.0
AHEAD_COST = 4.0
"""How much worse than the best start others are still tried, to see whether they fit too."""


def resumed(cuts: Cuts, purse: Purse | None = None) -> Cuts:
    """`cuts`, continued behind what could not be read, as far as that succeeds."""
    for _ in range(MOST_RESUMES):
        if not cuts.unread:
            break
        longer = _continued(cuts, purse)
        if longer is None:
            break
        cuts = longer
    return cuts


def _continued(cuts: Cuts, purse: Purse | None) -> Cuts | None:
    """One more stretch; None if no start leaves less unread."""
    ring = cuts.ring
    known = list(dict.fromkeys(c.op for c in cuts.found if c.op.kind is CollectiveKind.ALL_REDUCE))
    tried: list[tuple[float, Positions, Cuts]] = []
    for skipped, start in _starts(ring, cuts.state.positions):
        tail = cut_stream(
            ring,
            Trainer(),
            effort=HASTY,
            start=start,
            channels=cuts.state.channels,
            known=known,
            purse=purse,
        )
        if tail.found:
            score = SKIP_COST * skipped + tail.cost + UNREAD_COST * tail.unread
            tried.append((score, start, tail))
        if tried and SKIP_COST * skipped > min(tried)[0] + AHEAD_COST:
            break
    if not tried:
        return None
    tried.sort(key=lambda item: item[0])
    score, start, tail = tried[0]
    rivals = [other for cost, _, other in tried[1:] if cost <= score + AHEAD_COST]
    if any(_shifts(tail, other) for other in rivals):
        tail = replace(
            tail, found=tuple(replace(cut, doubt=BEGINNING_SHIFTED()) for cut in tail.found)
        )
    head = _head(ring, cuts, start, tail)
    found = (*cuts.found, *head, *tail.found)
    seen = sum(len(s.sends) for e in ring.edges for s in e.streams)
    unread = seen - sum(cut.matched for cut in found)
    if unread >= cuts.unread:
        return None
    return replace(
        cuts,
        found=found,
        state=tail.state,
        unread=unread,
        cost=cuts.cost + tail.cost,
    )


def _shifts(best: Cuts, other: Cuts) -> bool:
    """`other` reads as much, and cuts the same sends elsewhere."""
    one = max((cut.matched for cut in best.found), default=0)
    if other.unread > best.unread or _read(other) + one <= _read(best):
        return False
    begins = {cut.starts for cut in best.found}
    return not any(cut.starts in begins for cut in other.found)


def _read(cuts: Cuts) -> int:
    return sum(cut.matched for cut in cuts.found)


def _starts(ring: Ring, after: Positions) -> Iterator[tuple[int, Positions]]:
    """(sends skipped, positions): all connections cut at one instant, instants ascending."""
    sends = sorted(
        (send.message.first_ns, number, i, j)
        for i, (edge, at) in enumerate(zip(ring.edges, after, strict=True))
        for j, (stream, least) in enumerate(zip(edge.streams, at, strict=True))
        for number, send in stream.sends.items()
        if number >= least
    )
    positions = [
        [max(n, s.first) for s, n in zip(edge.streams, at, strict=True)]
        for edge, at in zip(ring.edges, after, strict=True)
    ]
    for skipped, (_, number, i, j) in enumerate(sends[:MOST_STARTS]):
        if tuple(map(tuple, positions)) != after:
            yield skipped, tuple(map(tuple, positions))
        positions[i][j] = max(positions[i][j], number + 1)


def _head(ring: Ring, cuts: Cuts, start: Positions, tail: Cuts) -> tuple[Cut, ...]:
    """The collective whose last sends lie before `start`: one that was found elsewhere and fits,
    if only one does."""
    if not any(
        n > m
        for at, of in zip(start, cuts.state.positions, strict=True)
        for n, m in zip(at, of, strict=True)
    ):
        return ()
    before_this = [
        a.op for a, b in zip(tail.found, tail.found[1:], strict=False) if b.op == tail.found[0].op
    ]
    ops = list(dict.fromkeys([*before_this, *(c.op for c in tail.found)]))
    fits = [
        cut
        for op in ops
        if op.kind is CollectiveKind.ALL_REDUCE
        if (cut := _ending(ring, op, start, tail.found[0], cuts.state)) is not None
    ]
    return tuple(fits[:1]) if before_this or len(fits) == 1 else ()


def _ending(ring: Ring, op: Op, stop: Positions, like: Cut, before: State) -> Cut | None:
    """`op` as it would lie if it ended at `stop`; None if a size contradicts that, or if it
    would reach back into what is read already."""
    schedules = schedules_of(op, like.rules[0], ring)
    starts: list[tuple[int, ...]] = []
    matched = lost = 0
    for edge, at, names, schedule, least in zip(
        ring.edges, stop, like.channels, schedules, before.positions, strict=True
    ):
        row: list[int] = []
        for stream, end, channel, read in zip(edge.streams, at, names, least, strict=True):
            sends = schedule[channel] if channel is not None else no_sends(0)
            begin = end - len(sends)
            agree = agreeing(stream, begin, sends, op.protocol)
            if agree is None or (read and begin < read):
                return None
            matched += agree
            lost += len(sends) - agree
            row.append(begin)
        starts.append(tuple(row))
    return (
        Cut(op, tuple(starts), like.channels, schedules, like.rules, matched, lost)
        if matched
        else None
    )
