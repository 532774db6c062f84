"""What is told of a ring over nodes of several GPUs, before any of its traffic is read.

Inside a node the ring passes through all GPUs over NVLink; only the last one writes to the network
and only the first of the next node reads it, so that of R links one in each node is on the wire.
Ranks lie node by node, as torchrun numbers them, unless the ranks that clear-to-send messages name
say otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flowcheck.wire.learn.flows.groups import Group, Link, is_circle

MOST_RANKS = 16
"""Ring sizes tried where neither a start-up nor the hosts seen tell; a longer ring is then not
recognised."""

MOST_GPUS = 72
"""Of a node; as many as share an NVLink domain (GB200 NVL72)."""


def plain(group: Group, path: Sequence[Link], counted: Sequence[int]) -> bool:
    """A ring of one GPU a node, of a size that is tried anyway, is what all this tells, and no
    other."""
    sizes = [len(path)] if is_circle(path) else range(len(path) + 1, MOST_RANKS + 1)
    tried = (ranks for ranks in sizes if ranks <= MOST_RANKS and ranks in counted)
    one = any(_in_step(group, path, ranks, 1) for ranks in tried)
    return one and not any(
        gpus > 1 and gpus in _steps(group, path, ranks) and _in_step(group, path, ranks, gpus)
        for ranks in counted
        for gpus in gaps(group, path, ranks)
    )


def gaps(group: Group, path: Sequence[Link], ranks: int) -> list[int]:
    """GPUs of a node, likeliest first."""
    if is_circle(path):
        return [] if ranks % len(path) else [ranks // len(path)]
    if len(path) == 1:
        return [1]  # Nothing tells, and no other link is to be placed.
    told = _steps(group, path, ranks)
    even = [g for g in range(1, min(MOST_GPUS, ranks // 2) + 1) if not ranks % g]
    even = [g for g in even if ranks // g > len(path)]
    return sorted(even, key=lambda g: (g not in told, g))


def likeliest_first(group: Group, path: Sequence[Link], counted: Sequence[int]) -> list[int]:
    """Ring sizes, those first whose nodes are as large as the ranks named tell."""
    return sorted(
        (ranks for ranks in counted if gaps(group, path, ranks)),
        key=lambda ranks: gaps(group, path, ranks)[0] not in _steps(group, path, ranks),
    )


def borne_out(group: Group, path: Sequence[Link], ranks: int, gpus: int) -> bool:
    """Hosts or the ranks named say that nodes are so large: a circle of hosts that addresses were
    only guessed to be ports of says nothing."""
    told = is_circle(path) and not group.guessed
    return told or gpus in _steps(group, path, ranks)


def otherwise(group: Group, path: Sequence[Link], ranks: int) -> list[tuple[int, int]]:
    """(GPUs of a node, ring index that writes on the first link) of nodes of several GPUs that the
    ranks named fit as well as a ring of one GPU each, or of any nodes where a link names several
    ranks; empty where no rank is named, which leaves all open anyway."""
    tags = [None if link in group.mixed else group.tags.get(link) for link in path]
    found: list[tuple[int, int]] = []
    for gpus in gaps(group, path, ranks):
        if any(tag is not None for tag in tags):
            firsts = by_tags(tags, ranks, gpus) or [] if gpus > 1 or group.mixed else []
        else:
            firsts = [*range(ranks)] if group.mixed else []
        found += ((gpus, first) for first in firsts)
    return found


def _steps(group: Group, path: Sequence[Link], ranks: int) -> set[int]:
    """From the rank named on a link to the one on the next."""
    return {
        (group.tags[b] - group.tags[a]) % ranks
        for a, b in pairwise((*path, path[0]) if is_circle(path) else path)
        if a in group.tags and b in group.tags
    }


def _in_step(group: Group, path: Sequence[Link], ranks: int, gap: int) -> bool:
    """The ranks that are named follow each other by `gap`."""
    named = [(i, group.tags[link]) for i, link in enumerate(path) if link in group.tags]
    firsts = {(tag - i * gap) % ranks for i, tag in named}
    return len(firsts) <= 1 and all(tag < ranks for tag in group.tags.values())


def by_tags(tags: Sequence[int | None], ranks: int, gpus: int) -> list[int] | None:
    """Ring indices that may write on the first link of a channel; None: the ranks named there do
    not lie node by node. tags: [link] rank that is named as its writer.

    Rank 0 has ring index 0. A node's exit is so many ranks behind rank 0's place in its node; where
    that very GPU, the first of its node, is the exit, its node's first ring index writes.
    """
    named = [(place, tag) for place, tag in enumerate(tags) if tag is not None]
    firsts = {(tag - place * gpus) % ranks for place, tag in named}
    if len(firsts) != 1 or any(tag >= ranks for _, tag in named):
        return None
    node, exit_gpu = divmod(firsts.pop(), gpus)
    whole = range(node * gpus, (node + 1) * gpus)
    return list(whole[:1] if not exit_gpu else whole[1:])
