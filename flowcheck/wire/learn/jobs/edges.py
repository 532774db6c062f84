"""The connections of a communicator as a job names them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.streams import PROTOCOLS, Stream
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.training_job.learned_job import Edge

FIRST_AMID = 1 << 32
"""What the first message of a job that was met amid its run is called on every flow."""


def edges_of(communicator: Communicator, start: Cut) -> list[Edge]:
    """All of them; their first messages are those of `start`."""
    ring = communicator.ring
    edges: list[Edge] = []
    for edge, at, names in zip(
        ring.edges, start.starts, communicator.cuts.state.channels, strict=True
    ):
        place = {name: i for i, name in enumerate(names) if name is not None}
        streams = [edge.streams[place[c]] if c in place else None for c in range(ring.width)]
        numbers = [at[place[c]] if c in place else 0 for c in range(ring.width)]
        made = edge_of(0, edge.sender, streams, numbers, edge.senders)
        edges.append(
            msgspec.structs.replace(
                made, receiver=edge.receiver, trees=edge.trees, heads=edge.heads
            )
        )
    return edges


def edges_amid(communicator: Communicator, start: Cut) -> list[Edge] | None:
    """The same of connections whose start was not seen: messages are counted from those of `start`
    on. None where several queue pairs of one take turns."""
    edges = []
    for edge, own, at, names in zip(
        edges_of(communicator, start),
        communicator.ring.edges,
        start.starts,
        communicator.cuts.state.channels,
        strict=True,
    ):
        if edge.queue_pairs:
            return None
        place = {name: i for i, name in enumerate(names) if name is not None}
        psns = tuple(
            (own.streams[place[c]].sends[at[place[c]]].first_psn,) if c in place else ()
            for c in range(len(edge.flows))
        )
        # What a flag counts from is told by each message's own.
        edges.append(
            msgspec.structs.replace(
                edge,
                first_numbers=(FIRST_AMID,) * len(edge.flows),
                first_psns=psns,
                flags_count=False,
            )
        )
    return edges


def edge_of(
    communicator: int,
    sender: int,
    streams: Sequence[Stream | None],
    numbers: Sequence[int],
    senders: tuple[int, ...] = (),
) -> Edge:
    """The mirrored connections from one rank, or node, to the next. streams: [channel], None where
    no mirror saw it; numbers: [channel] of its first send; senders: [channel] where they differ."""
    seen = [stream for stream in streams if stream is not None]
    several = any(len(stream.turns) > 1 for stream in seen)
    turns = tuple(() if stream is None else stream.turns for stream in streams)
    simple = PROTOCOLS.index(Protocol.SIMPLE)
    return Edge(
        communicator=communicator,
        sender=sender,
        flows=tuple(own[0] if own else None for own in turns),
        first_numbers=tuple(numbers),
        flags_count=not any(simple in stream.columns.protocol_codes for stream in seen),
        queue_pairs=turns if several else (),
        split=any(stream.split for stream in seen),
        senders=senders,
    )
