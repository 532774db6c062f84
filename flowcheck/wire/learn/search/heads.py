"""What lies before the first collective that was read whole, where a capture begins amid a run.

Iterations repeat: before it comes what came before it each time. Its last sends were seen, and
often all that hold its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.collectives.send_table import no_sends
from flowcheck.wire.learn.cuts.candidates import Op, schedules_of
from flowcheck.wire.learn.cuts.cut import Cut, Cuts
from flowcheck.wire.learn.cuts.match import agreeing
from flowcheck.wire.learn.search.scores import contradicted


def headed(cuts: Cuts) -> Cuts:
    """`cuts` with the all-reduces before its first one, back to the one that the capture begins
    amid, or of one that gathers, with all that was seen whole; as it is where what was seen before
    contradicts that they came there again."""
    found, gathers = list(cuts.found), cuts.ring.gathers
    while found and (op := _before([cut.op for cut in found])) is not None:
        other = op.kind is not CollectiveKind.ALL_REDUCE
        cut = None if other and not gathers else _ending(cuts, op, found[0])
        if cut is None or (gathers and cut.lost):
            break
        found.insert(0, cut)
        if cut.lost:
            break
    added = found[: len(found) - len(cuts.found)]
    if not added or (not gathers and contradicted(replace(cuts, found=tuple(added)))):
        return cuts
    skipped = max(0, cuts.skipped - sum(cut.matched for cut in added))
    return replace(cuts, found=tuple(found), skipped=skipped)


def _before(ops: Sequence[Op]) -> Op | None:
    """What comes before the first of them by the shortest period that all of them keep; None: they
    repeat nothing."""
    for period in range(1, len(ops)):
        if ops[period:] == ops[: len(ops) - period]:
            return ops[period - 1]
    return None


def _ending(cuts: Cuts, op: Op, behind: Cut) -> Cut | None:
    """`op` as it lies right before `behind`; None where a size contradicts that, or nothing of it
    was seen."""
    ring, names = cuts.ring, cuts.state.channels
    schedules = schedules_of(op, cuts.state.rules[0], ring)
    starts: list[tuple[int, ...]] = []
    matched = lost = 0
    for edge, at, channels, schedule in zip(
        ring.edges, behind.starts, names, schedules, strict=True
    ):
        row: list[int] = []
        for stream, end, channel in zip(edge.streams, at, channels, strict=True):
            sends = schedule[channel] if channel is not None else no_sends(0)
            agree = agreeing(stream, end - len(sends), sends, op.protocol)
            if agree is None:
                return None
            matched += agree
            lost += len(sends) - agree
            row.append(end - len(sends))
        starts.append(tuple(row))
    if not matched:
        return None
    return Cut(op, tuple(starts), names, schedules, cuts.state.rules, matched, lost)
