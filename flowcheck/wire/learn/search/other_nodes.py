"""Whether nodes of another number of GPUs explain all that was read: others would write then.

Where one link of a port is seen and one rank is named, the rank on the next link is as many behind
as a node has GPUs. A ring of one GPU a node then fits the names, and so do nodes of several. Sizes
contradict the others (a short chunk is of one writer), or copies of a chunk that differ under them.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.collectives.ring_schedule import Send, sends_per_chunk
from flowcheck.wire.learn.cuts.cut import Cut, Cuts
from flowcheck.wire.learn.cuts.place import Canvas, result_bytes, unpacked
from flowcheck.wire.learn.flows.rings import Edge
from flowcheck.wire.learn.flows.streams import Stream

Laid = tuple[Edge, Stream, int, tuple[Send, ...]]
"""What a collective has on a connection: from which number on, which sends."""


def nodes_open(cuts: Cuts) -> bool:
    """Others may write all that was read, with so many GPUs a node as the ranks named allow too."""
    others = cuts.ring.edges[0].otherwise
    if not others or any(len(edge.otherwise) != len(others) for edge in cuts.ring.edges):
        return False
    told = _told(cuts)
    channels = {c for cut in told if _reduces(cut) for c in cut.channels[0] if c is not None}
    return any(_fits(cuts, told, channels, gpus) for gpus in {gpus for gpus, _ in others})


def _told(cuts: Cuts) -> list[Cut]:
    """Collectives that surely are what they were read as: what the trainer's own follow, where
    nothing is left unread."""
    own = [i for i, cut in enumerate(cuts.found, 1) if cut.op.licensed]
    sure = 0 if cuts.unread else max(own, default=0)
    return [
        cut
        for i, cut in enumerate(cuts.found)
        if (cut.op.licensed or (i < sure and not cut.lost))
        and not (cut.op.open_size or cut.op.tree)
    ]


def _fits(cuts: Cuts, told: list[Cut], channels: set[int], gpus: int) -> bool:
    """On each channel somebody may write with so many GPUs a node, and on one it is another."""
    edges, differs = cuts.ring.edges, False
    for channel in channels:
        own = [edge.sender_of(channel) for edge in edges]
        ways = zip(*(edge.otherwise for edge in edges), strict=True)
        writers = [[writer for _, writer in way] for way in ways if way[0][0] == gpus]
        stand = [one for one in writers if one == own or _stands(cuts, told, channel, one)]
        if not stand:
            return False
        differs |= any(one != own for one in stand)
    return differs


def _stands(cuts: Cuts, told: list[Cut], channel: int, writers: list[int]) -> bool:
    """All that a channel carried may have been written by these ring indices, one of each edge."""
    turns = {
        id(edge): writer - edge.sender_of(channel)
        for edge, writer in zip(cuts.ring.edges, writers, strict=True)
    }
    return all(_alike(cuts, cut, channel, turns) for cut in told) and not any(
        _copies_differ(cuts, cut, channel, turns)
        for cut in {cut.op: cut for cut in told if _reduces(cut) and not cut.lost}.values()
    )


def _reduces(cut: Cut) -> bool:
    return cut.op.kind is CollectiveKind.ALL_REDUCE


def _laid(cuts: Cuts, cut: Cut, channel: int) -> Iterator[Laid]:
    for edge, at, names, schedule in zip(
        cuts.ring.edges, cut.starts, cut.channels, cut.schedules, strict=True
    ):
        if channel in names and schedule[channel]:
            place = names.index(channel)
            yield edge, edge.streams[place], at[place], tuple(schedule[channel])


def _alike(cuts: Cuts, cut: Cut, channel: int, turns: dict[int, int]) -> bool:
    """Sizes, and that there is a broadcast, do not contradict it."""
    ranks = cuts.ring.ranks
    for edge, stream, number, sends in _laid(cuts, cut, channel):
        turn = turns[id(edge)]
        if cut.op.kind is CollectiveKind.BROADCAST:
            # It would write to the root, to which no broadcast goes.
            if (edge.sender_of(channel) + turn + 1 - cut.op.root) % ranks == 0:
                return False
        elif _reduces(cut):
            for i, send in enumerate(_turned(cut, sends, turn, ranks)):
                seen = stream.sends.get(number + i)
                if seen is not None and (send is None or seen.wire_bytes != send.wire_bytes):
                    return False
    return True


def _turned(cut: Cut, sends: tuple[Send, ...], turn: int, ranks: int) -> list[Send | None]:
    """The chunks that a writer so many ring indices on sends in the place of these."""
    slices = sends_per_chunk(cut.op.kind, cut.op.protocol)
    chunks = {(send.loop, send.chunk, i % slices): send for i, send in enumerate(sends)}
    return [
        chunks.get((send.loop, (send.chunk + turn) % ranks, i % slices))
        for i, send in enumerate(sends)
    ]


def _copies_differ(cuts: Cuts, cut: Cut, channel: int, turns: dict[int, int]) -> bool:
    """Two links then have other bytes as the final sum of one chunk."""
    laid = list(_laid(cuts, cut, channel))
    if len(laid) < 2 or len(set(turns.values())) < 2:
        return False  # All are turned alike, and so are their copies.
    canvas = Canvas(result_bytes(cut, cuts.ring))
    for edge, stream, number, sends in laid:
        turned = _turned(cut, sends, turns[id(edge)], cuts.ring.ranks)
        for i, (was, send) in enumerate(zip(sends, turned, strict=True)):
            seen = stream.sends.get(number + i)
            if seen is None or not was.final or send is None or not send.data_bytes:
                continue
            if canvas.put(send.start_byte, *unpacked(seen, cut.op.protocol, send.data_bytes)):
                return True
    return False
