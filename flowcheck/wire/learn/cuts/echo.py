"""A rank that sends the same twice gathers twice: of two ranks, an all-reduce does not."""

from __future__ import annotations

import numpy as np

from flowcheck.wire.learn.cuts.match import Cut
from flowcheck.wire.learn.cuts.place import unpacked
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.schedule import sends_per_chunk
from flowcheck.wire.terms import Kind

ENOUGH_VALUES = 16
"""Different words in a send, before it is no chance that another one holds the same."""


def echoes(cut: Cut, ring: Ring) -> bool:
    """What is read as an all-reduce of two ranks holds one rank's part and a result that are the
    same: it is two all-gathers, as of parameters before a forward and again before a backward."""
    if ring.ranks != 2 or ring.sounding or cut.op.kind is not Kind.ALL_REDUCE or cut.op.licensed:
        return False
    slices = sends_per_chunk(cut.op.kind, cut.op.protocol)
    for edge, at, names, schedule in zip(
        ring.edges, cut.starts, cut.channels, cut.schedules, strict=True
    ):
        for stream, number, channel in zip(edge.streams, at, names, strict=True):
            sends = schedule[channel] if channel is not None else ()
            pair = stream.sends.get(number), stream.sends.get(number + slices)
            if not sends or None in pair or sends[0].data_bytes != sends[slices].data_bytes:
                continue
            one, two = (
                unpacked(seen, cut.op.protocol, sends[0].data_bytes) for seen in pair if seen
            )
            both = one[1] & two[1]
            words = one[0][: len(both) // 4 * 4].view("<u4")
            return (
                bool(both.all())
                and bool((one[0] == two[0]).all())
                and len(np.unique(words)) >= ENOUGH_VALUES
            )
    return False
