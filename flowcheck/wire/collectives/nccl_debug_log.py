"""Ring orders and the NCCL version, read from a trainer's NCCL_DEBUG=INFO log.

NCCL src/graph/rings.cc, ncclBuildRings: rank 0 of each communicator prints its rings, a line for
each channel, ranks in ring order from itself on; up to 2.21 no more than 20 of them (MAXWIDTH).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from flowcheck.errors import LearnError
from flowcheck.findings.catalog.nccl_transport import ANOTHER_JOB, NO_RINGS
from flowcheck.findings.finding import Finding

_RING = re.compile(
    r"^(?P<who>.*)NCCL INFO Channel (?P<n>\d+)/(?P<of>\d+) ?:(?P<ranks>( +\d+)+)\s*$"
)
_SIZE = re.compile(r"^(?P<who>.*)NCCL INFO comm \S+ rank 0 nRanks (?P<ranks>\d+) ")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
MAX_PRINTED_RANKS = 20
"""MAXWIDTH: a line of so many ranks may be the begin of a longer one."""


class RingOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One communicator's rings."""

    ranks: int
    """0: not told."""
    channels: tuple[tuple[int, ...], ...]
    """[channel][ring index] rank; of long rings only the first ones."""

    def index_of(self, rank: int, *, channel: int, ranks: int, gpus: int) -> int | None:
        """Ring index of `rank`, which writes to another node, nodes being `gpus` ranks on end;
        None: this says nothing of such a ring, or another rank writes there."""
        if channel >= len(self.channels) or self.ranks not in (0, ranks):
            return None
        ring = self.channels[channel]
        if len(ring) != ranks and not (len(ring) == MAX_PRINTED_RANKS < ranks):
            return None
        nodes = [told // gpus for told in ring]
        whole = len(ring) == ranks
        after = (*nodes[1:], nodes[0]) if whole else tuple(nodes[1:])
        left = [i for i, (node, then) in enumerate(zip(nodes, after, strict=False)) if node != then]
        # A node's ranks follow each other, so that it is left once.
        if not left or any(b - a != gpus for a, b in pairwise(left)):
            return None
        if rank in ring:
            index = ring.index(rank)
            return index if index in left else None
        # Only the first nodes were printed: the others go round alike where these lie in order.
        alike = all(ring[i] == ring[left[0]] + n * gpus for n, i in enumerate(left))
        node, place = divmod(rank, gpus)
        return left[0] + node * gpus if alike and place == ring[left[0]] % gpus else None


def other_job_finding(orders: Sequence[RingOrder], ranks: Sequence[int]) -> Finding | None:
    """That no ring of the log has as many ranks as one seen; None: one has, or none was seen.
    ranks: of each communicator."""
    told = sorted({order.ranks or len(order.channels[0]) for order in orders})
    cut = any(not order.ranks and len(order.channels[0]) == MAX_PRINTED_RANKS for order in orders)
    if not orders or not ranks or cut or set(told) & set(ranks):
        return None
    return ANOTHER_JOB(logged=told, seen=sorted(set(ranks)))


class NcclLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log's statements."""

    orders: tuple[RingOrder, ...]
    version: str | None = None


def parse_nccl_log(text: str) -> NcclLog:
    """The rings that NCCL's log tells, of every communicator. Raises LearnError where it tells
    none."""
    sizes: dict[str, int] = {}
    found: list[tuple[int, dict[int, tuple[int, ...]]]] = []
    open_at: dict[str, int] = {}
    version = None
    for line in text.splitlines():
        if told := _VERSION.search(line):
            version = version or told[1]
        if size := _SIZE.match(line):
            sizes[size["who"]] = int(size["ranks"])
        if (ring := _RING.match(line)) is None:
            continue
        who, number = ring["who"], int(ring["n"])
        if number == 0:
            open_at[who] = len(found)
            found.append((sizes.pop(who, 0), {}))
        if who in open_at:
            found[open_at[who]][1][number] = tuple(map(int, ring["ranks"].split()))
    orders = []
    for ranks, channels in found:
        if sorted(channels) == list(range(len(channels))):
            order = tuple(channels[number] for number in range(len(channels)))
            orders.append(RingOrder(ranks=ranks, channels=order))
    if not orders:
        raise LearnError(NO_RINGS())
    return NcclLog(orders=tuple(dict.fromkeys(orders)), version=version)
