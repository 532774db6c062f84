"""Rings over nodes of several GPUs, and long ones: who writes on each channel, as one link tells.

The start-up counts the ranks, all GPUs of all nodes. One link is laid out by the program with its
writers left open; the sizes of its all-reduces then tell them, channel by channel, or the ranks
that clear-to-send messages name do. All links have to bear that out (`predicted.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.align.known import Known
from flowcheck.wire.learn.flows.groups import Group, Link, path_of
from flowcheck.wire.learn.flows.nodes import gaps, likeliest_first
from flowcheck.wire.learn.flows.nvls import forks_in_turns, nvls_forks, port_forks
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.flows.trees import Fork, forks
from flowcheck.wire.learn.flows.two_nodes import forks_of_two
from flowcheck.wire.learn.search.sounding import MOST_LEADS, lead_ring, leads
from flowcheck.wire.learn.search.writers import Writers
from flowcheck.wire.learn.trainer.aligner import Aligner, Way, cuts_of
from flowcheck.wire.programs.ddp import ddp


@dataclass(frozen=True, slots=True)
class Guess:
    """A ring that connections may be."""

    ring: Ring
    told_by: tuple[tuple[int, str], ...] | None = None
    """What one link carried, as `Way.meant`, where that tells who writes; None: all else does."""


def rings_over_nodes(
    group: Group, path: Sequence[Link], counted: Sequence[int], known: Known
) -> Iterator[list[Guess]]:
    """Rings of these ranks that the group may be, those that are as likely together, the likeliest
    first; empty: the program does not foretell what its busiest links carried. counted: ranks by
    the start-up."""
    for ranks in likeliest_first(group, path, counted):
        if ranks > max(group.tags.values(), default=0):
            yield from _alike(_read(group, path, ranks, known))


def rings_with_trees_over_nodes(streams: Sequence[Stream], known: Known) -> Iterator[list[Guess]]:
    """The same, of rings that trees are beside."""
    yield from _forked([*forks(streams)], known)


def rings_with_trees_over_two_nodes(
    streams: Sequence[Stream], known: Known
) -> Iterator[list[Guess]]:
    """The same over two nodes, those of more channels first."""
    for fork in forks_of_two(streams):
        yield from _forked([fork], known)


def rings_with_trees_over_ports(streams: Sequence[Stream], known: Known) -> Iterator[list[Guess]]:
    """The same over several ports of each node."""
    yield from _forked_or_silent(port_forks(streams), known)


def rings_with_nvls(streams: Sequence[Stream], known: Known) -> Iterator[list[Guess]]:
    """The same, of rings that NVLS trees are beside; first those that have plain trees too, of
    which there are few."""
    yield from _forked_or_silent(forks_in_turns(streams), known)
    yield from _forked_or_silent(nvls_forks(streams), known)


def _forked_or_silent(ways: Iterable[Fork], known: Known) -> Iterator[list[Guess]]:
    for fork in sorted(ways, key=lambda fork: fork.penalty):
        yield from _forked([fork], known)
        yield from _alike(Guess(ring) for ring in fork.by_silence(known.rules))


def _forked(ways: Sequence[Fork], known: Known) -> Iterator[list[Guess]]:
    found: list[Guess] = []
    for fork in ways:
        for guess in _read(fork.ring, path_of(fork.ring) or (), fork.ranks, known, fork):
            told = guess.ring
            if told.gpus == fork.gpus and (not fork.fixed or fork.agrees(told)):
                found += (replace(guess, ring=ring) for ring in fork.rings(guess.ring))
    yield from _alike(found)


def _alike(guesses: Iterable[Guess]) -> Iterator[list[Guess]]:
    ordered = sorted(guesses, key=_penalty)
    yield from (list(alike) for _, alike in groupby(ordered, key=_penalty))


def _read(
    group: Group, path: Sequence[Link], ranks: int, known: Known, fork: Fork | None = None
) -> Iterator[Guess]:
    """By what the program says of one of the busiest links. fork: trees beside the ring."""
    if not path:
        return
    links = leads(group)
    alone = len(links) == 1 and fork is None

    def followed(ring: Ring) -> list[Way]:
        return Aligner(ring, known.purse, goes_on=known.goes_on, alone=alone).followed(ddp)

    for lead in links[:MOST_LEADS]:
        ring = lead_ring(group, lead, ranks, known.rules, fork)
        ways = followed(ring)
        added = replace(ring, extra_sends=1)
        if any(map(_has_open, ways)) and any(map(_sums_round, followed(added))):
            return  # What bears out an added ring step the search asks.
        # Without a sum a way tells nobody who writes; all links are laid out in every way again.
        ways = [way for way in ways if way.reduces] or ways
        yield from _guesses(group, path, lead, ring, ways, known.logged)
        if ways:
            return


def _guesses(
    group: Group,
    path: Sequence[Link],
    lead: Link,
    ring: Ring,
    ways: Sequence[Way],
    logged: Sequence[RingOrder],
) -> Iterator[Guess]:
    """Whom each way in which the lead may be laid out has writing, for each size of nodes; of
    those that have the same ones writing everywhere that is seen, the likeliest."""
    for way in ways:
        cuts, known = cuts_of(ring, way), set[object]()
        # What a script reduced is sure to be that where the trainer's follow it, or other links
        # are asked too.
        meant = [i for i, cut in enumerate(cuts.found, 1) if cut.op.licensed]
        sure = len(cuts.found) if len(group.links) > 1 else max(meant, default=0)
        for gpus in gaps(group, path, ring.ranks):
            by_node = ring.branches
            told = Writers(group, path, cuts, lead, gpus, logged, by_node, sure).ring(ring.rules)
            name = None if told is None else (told.turns, *(edge.writers for edge in told.edges))
            if told is not None and name not in known:
                known.add(name)
                yield Guess(told, way.meant)


def _has_open(way: Way) -> bool:
    """Something came of which nothing but the wire tells the size: it may be an added ring step."""
    return any(cut.op.from_wire or not cut.op.licensed for cut in way.cuts)


def _sums_round(way: Way) -> bool:
    """An all-reduce went round the ring, seen whole: an added ring step changes no other."""
    return any(
        cut.op.kind is CollectiveKind.ALL_REDUCE and not cut.lost and not cut.op.tree
        for cut in way.cuts
    )


def _penalty(guess: Guess) -> int:
    return guess.ring.penalty
