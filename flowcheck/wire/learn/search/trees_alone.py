"""Other communicators of a trainer's ranks that used trees and no ring.

NCCL makes the connections of an algorithm once it is used (since 2.22), and sums of a few numbers
mostly go by trees. Without a start-up nothing in these tells how many ranks there are: the trainer
beside them does, of which they have the hosts and the numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.cuts.cut import HASTY, Purse, cut_stream
from flowcheck.wire.learn.flows.rings import Edge, Ring, seen_whole
from flowcheck.wire.learn.flows.rows import parts, rows
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.flows.trees import (
    Links,
    around,
    channels_used,
    linked,
    links_of_trees,
    mirrored,
    turns_of_trees,
)
from flowcheck.wire.learn.search.communicators import Communicator, read_guesses
from flowcheck.wire.learn.search.scores import contradicted
from flowcheck.wire.learn.search.trees import PURSE, QUICK_PURSE
from flowcheck.wire.learn.trainer.grammar import Trainer

LEAST_RANKS = 3
"""Of two each tree has the ring's connections."""
MOST_PARTINGS = 3
"""Ways in which connections are tried as those of several."""


def with_trees_alone(
    found: Sequence[Communicator], rules: tuple[NcclEra, ...], purse: Purse
) -> list[Communicator]:
    """The communicators, those that began without a start-up read as trees of a trainer's ranks,
    if that explains every send of them. Where it does not, none is a ring that leads elsewhere than
    from each of these ranks to the next."""
    told = list(found)
    for trainer in (c for c in found if c.habits.shapes):
        others = [c for c in told if not c.habits.shapes and not c.ring.gathers]
        for way in _ways([s for c in others for s in _streams(c)]):
            read = [_read(row, trainer, rules, purse) for row in way]
            whole = [one for one in read if one is not None]
            if whole and len(whole) == len(way):
                told = [c for c in told if c not in others] + whole
                break
        told = [_unless_elsewhere(c, trainer) for c in told]
    return told


def _unless_elsewhere(known: Communicator, trainer: Communicator) -> Communicator:
    """Of no reading at all, if it has the trainer's ranks, and its ring leads elsewhere than from
    each to the next."""
    rank_of = None if known.habits.shapes or known.habits.own else _ranks_named(trainer)
    ring = known.ring
    if rank_of is None or ring.gpus > 1 or ring.branches or not _agree(_streams(known), rank_of):
        return known
    ends = [(rank_of[s.key.source], rank_of.get(s.key.destination)) for s in _streams(known)]
    if all(reader in (None, (writer + 1) % ring.ranks) for writer, reader in ends):
        return known
    return replace(known, cuts=cut_stream(ring, Trainer(), effort=(0, 0)), rivals=())


def _ways(streams: Sequence[Stream]) -> Iterator[tuple[tuple[Stream, ...], ...]]:
    """Those of no trainer as one communicator, or as several."""
    if not streams:
        return
    yield (tuple(streams),)
    made = rows(streams)
    if len(made) > 1:
        yield tuple(made)
    yield from islice(parts(tuple(streams)), MOST_PARTINGS)


def _streams(communicator: Communicator) -> list[Stream]:
    return [stream for edge in communicator.ring.edges for stream in edge.streams]


def _read(
    streams: Sequence[Stream], trainer: Communicator, rules: tuple[NcclEra, ...], purse: Purse
) -> Communicator | None:
    """As trees of the trainer's ranks; None: these do not explain all of it."""
    ring = trainer.ring
    rank_of = _ranks_named(trainer)
    if rank_of is None or not _agree(streams, rank_of):
        return None
    links = linked(streams, rank_of, ring.ranks)
    every = [*streams, *_streams(trainer)]
    ours = mirrored({(rank_of[s.key.source], rank_of[s.key.destination]) for s in every})
    if links is None or not _of_trees_alone(links, ring.ranks, ours):
        return None
    sends = sum(len(stream.sends) for stream in streams)
    guesses = [
        guess
        for guess in _guesses(links, ring, rules)
        if not cut_stream(
            guess,
            Trainer(),
            effort=HASTY,
            purse=Purse.of(QUICK_PURSE, sends, purse.budget),
            in_order=seen_whole(guess),
        ).unread
    ]
    read = read_guesses(guesses, Purse.of(PURSE, sends, purse.budget))
    if read is None or read.cuts.unread or contradicted(read.cuts):
        return None
    return read if all(cut.op.tree for cut in read.cuts.found) else None


def _ranks_named(trainer: Communicator) -> dict[str, int] | None:
    """{address: rank} of the trainer's hosts, one rank on each; None: nothing names them."""
    if trainer.ring.gpus > 1 or trainer.ring.ranks < LEAST_RANKS:
        return None
    rank_of: dict[str, int] = {}
    if not _agree(_streams(trainer), rank_of):
        return None
    for edge in trainer.ring.around:
        for stream in edge.streams:
            rank_of.setdefault(stream.key.destination, (edge.sender + 1) % trainer.ring.ranks)
    return rank_of if len(set(rank_of.values())) == len(rank_of) else None


def _agree(streams: Sequence[Stream], rank_of: dict[str, int]) -> bool:
    """Clear-to-send messages name these ranks. rank_of: {address: rank}; learns who writes."""
    return all(
        stream.tag is not None and rank_of.setdefault(stream.key.source, stream.tag) == stream.tag
        for stream in streams
    )


def _of_trees_alone(links: Links, ranks: int, ours: set[int]) -> bool:
    """Mirrored ranks have all that the first tree links, and what else there is the second one
    does; no ring has all of it. ours: those ranks."""
    first, second = links_of_trees(ranks, ours)
    alone = any(not around(link, ranks) for link in links)
    return alone and links.keys() in (first, first | second)


def _guesses(links: Links, trainer: Ring, rules: tuple[NcclEra, ...]) -> Iterator[Ring]:
    """The trees there may be on as many channels as were seen."""
    used = max(channels_used(links, trainer.ranks), 1)
    edges = tuple(
        Edge(sender=link[0], receiver=link[1], streams=tuple(own))
        for link, own in sorted(links.items())
    )
    for found in turns_of_trees(links, trainer.ranks, used):
        yield Ring(
            ranks=trainer.ranks,
            edges=edges,
            channels=used,
            extra_sends=0,
            rules=rules,
            penalty=0,
            found=found,
        )
