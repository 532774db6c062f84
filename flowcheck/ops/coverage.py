"""What mirrored links carry of an all-reduce, and what another link would add, by its schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from flowcheck.wire.schedule import Schedule, all_reduce
from flowcheck.wire.sight import Sight, sight
from flowcheck.wire.terms import Protocol, Rule

FAR_RANKS = 64
"""Of a longer ring only links beside those seen are tried: all others are alike."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The all-reduce and its ring."""

    bytes: int
    element_bytes: int
    extra_sends: int
    ranks: int
    channels: int
    protocol: Protocol
    rule: Rule


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What another mirrored link would add."""

    links: tuple[int, ...]
    """Their senders: each of them alone would add as much."""
    adds_bytes: int
    """Of the all-reduce, in final form where nothing was."""
    twice_bytes: int
    """Of it that would then be seen twice at least."""


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Of one all-reduce: what the mirrored links carry of it, whatever was lost."""

    bytes: int
    once_bytes: int
    twice_bytes: int
    chunk_links: tuple[int, ...]
    """[chunk of a loop] how many of them carry it in final form."""
    missing_chunks: tuple[int, ...]
    gains: tuple[Gain, ...]
    weights: bool
    """A broadcast from rank 0 passes one of the links."""


def coverage_of(shape: Shape, senders: Sequence[int]) -> Coverage:
    """senders: ring indices out of which mirrored links lead."""
    seen = sorted(set(senders))
    now = _seen(shape, seen)
    gains: dict[tuple[int, int], list[int]] = {}
    for sender in _others(shape.ranks, seen):
        more = _seen(shape, [*seen, sender])
        gains.setdefault((more.once_bytes - now.once_bytes, more.twice_bytes), []).append(sender)
    return Coverage(
        bytes=shape.bytes,
        once_bytes=now.once_bytes,
        twice_bytes=now.twice_bytes,
        chunk_links=now.links,
        missing_chunks=now.missing,
        gains=tuple(
            Gain(links=tuple(links), adds_bytes=adds, twice_bytes=twice)
            for (adds, twice), links in sorted(gains.items(), reverse=True)
        ),
        weights=any(sender != shape.ranks - 1 for sender in seen),
    )


def _others(ranks: int, seen: Sequence[int]) -> Iterable[int]:
    if ranks <= FAR_RANKS:
        return [sender for sender in range(ranks) if sender not in seen]
    beside = {(sender + step) % ranks for sender in seen for step in (-1, 1)}
    return sorted(beside - set(seen))


def _seen(shape: Shape, senders: Sequence[int]) -> Sight:
    return sight([_schedule(shape, sender) for sender in senders], shape.bytes, shape.ranks)


@lru_cache(maxsize=256)
def _schedule(shape: Shape, sender: int) -> Schedule:
    return all_reduce(
        shape.bytes,
        sender=sender,
        element_bytes=shape.element_bytes,
        extra_sends=shape.extra_sends,
        ranks=shape.ranks,
        channels=shape.channels,
        protocol=shape.protocol,
        rule=shape.rule,
    )
