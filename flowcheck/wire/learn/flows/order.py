"""Which send comes next, over all connections of a ring."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.learn.flows.rings import Ring


def earliest(
    ring: Ring, positions: Sequence[Sequence[int]], *, trees: bool | None = None
) -> tuple[int, int] | None:
    """(edge, stream) of the first of the sends that come next; None: none comes. positions:
    [edge][stream] number of its next send; trees: of the connections that trees alone have, or of
    all others; None: of all."""
    found = [
        (*send.message.time, i, j)
        for i, (edge, at) in enumerate(zip(ring.edges, positions, strict=True))
        for j, (stream, number) in enumerate(zip(edge.streams, at, strict=True))
        if trees in (None, edge.receiver is not None)
        and (send := stream.sends.get(number)) is not None
    ]
    return min(found)[2:] if found else None


def seen_whole(ring: Ring) -> bool:
    """Every connection from its start on, and nothing was lost."""
    return all(stream.whole for edge in ring.edges for stream in edge.streams)
