"""Find the communicators of a capture: several may share ports, hosts and even all their ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.cuts.cut import Purse
from flowcheck.wire.learn.cuts.purse import PURSE, SendBudget
from flowcheck.wire.learn.flows.groups import Group, alone, groupings, path_of
from flowcheck.wire.learn.flows.roles import Grants
from flowcheck.wire.learn.flows.rows import Row, parts, rows, unpaired, used_together
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.communicators import Communicator, read_group
from flowcheck.wire.learn.search.gathers import gathers_again, read_gathers, scattered
from flowcheck.wire.learn.search.scores import CONTRADICTION_COST, score_of
from flowcheck.wire.learn.search.started import counts_seen
from flowcheck.wire.learn.search.together import (
    each_starts,
    in_step,
    own_links,
    share_hosts,
    start_up_apart,
    tells,
)
from flowcheck.wire.learn.search.trees import read_trees, trees_beside_others
from flowcheck.wire.learn.search.trees_alone import with_trees_alone
from flowcheck.wire.learn.search.unseen_links import forwards, joined

DEPTH = 2
"""How often a row is parted again."""
PART_PURSE = (1_000, 20)
"""Steps of the search in a part of a row, and for each of its sends: what is one fits at once."""
LIKELY_PARTS = 2
"""Ways in which a row is parted that can be read as one, where only bytes contradict that."""
MANY_SENDS = 500
FIRST_PURSE = (1_000, 10)
"""The same, of a row of more sends than that, before it is parted at all: the search in several
communicators taken for one never ends, and what is one is mostly read in far fewer."""


def find_communicators(
    streams: Sequence[Stream],
    grants: Sequence[Grants],
    rules: tuple[NcclEra, ...],
    purse: Purse,
    logged: Sequence[RingOrder] = (),
    near: Collection[int] = (),
) -> list[Communicator]:
    """By the rows that connections were made in, or by when they were used, if that leaves nothing
    unread. Else the coarsest grouping by hosts that leaves nothing unread, or what leaves least.
    Order: by when each was first used. logged: ring orders as NCCL's log has them; near:
    ranks of communicators on the same hosts, which these rather have too."""
    found = joined(_found(streams, grants, rules, purse, logged, near), purse)
    found = with_trees_alone(found, rules, purse)
    return sorted(map(_told, found), key=began)


def _told(communicator: Communicator) -> Communicator:
    """Only now: what contradicts a gather speaks against the reading it is of."""
    if communicator.habits.shapes or communicator.ring.gathers:
        return communicator
    cuts = communicator.cuts
    return replace(communicator, cuts=replace(cuts, found=scattered(cuts.found, cuts.ring)))


def began(communicator: Communicator) -> int:
    """When a connection of it was used first."""
    return min(s.flow.first_ns for edge in communicator.ring.edges for s in edge.streams)


def _found(
    streams: Sequence[Stream],
    grants: Sequence[Grants],
    rules: tuple[NcclEra, ...],
    purse: Purse,
    logged: Sequence[RingOrder],
    near: Collection[int],
) -> list[Communicator]:
    search = _Search(streams, grants, rules, logged, purse.budget)
    search.ranks.update(near)
    best: tuple[float, list[Communicator]] | None = None
    by_trees = read_trees(streams, rules, purse, logged, whole=True)
    if by_trees is not None and not by_trees.cuts.unread:
        return [by_trees]
    if (apart := trees_beside_others(streams, rules, purse, logged)) is not None:
        peers = {stream.peer for edge in apart[0].ring.edges for stream in edge.streams}
        left = [grant for grant in grants if grant.flow.key not in peers]
        return [apart[0], *_found(apart[1], left, rules, purse, logged, near)]
    by_trees = by_trees or read_trees(streams, rules, purse, logged)
    if by_trees is not None:
        if not by_trees.cuts.unread:
            return [by_trees]
        best = _better(None, [by_trees])
    made = rows(streams)
    if own_links(made) and (one := search.around(made)):
        return one
    # Rows that touch nowhere may be ports of one host, unless trainers start up at each of them.
    shared = len(made) == 1 or share_hosts(made)
    if shared or start_up_apart(made):
        known = [search.of(row, DEPTH) for row in made]
        found = [c for own in known for c in own]
        if all(map(_whole, known)) and (shared or each_starts(found)):
            return search.united(found) or found
    if shared:
        if all(known) and len(made) > 1:
            best = _better(best, found)
        for way in used_together(streams):
            if found := search.all_of(way, 1):
                return found
    for groups in groupings(streams, grants) if streams else ():
        read = (read_group(group, rules, purse, near=near, logged=logged) for group in groups)
        found = [c for c in read if c is not None]
        if len(found) < len(groups):
            continue
        if _whole(found):
            return found
        best = _better(best, found)
    return best[1] if best else []


def _score(found: Sequence[Communicator]) -> float:
    """What speaks against a reading."""
    return sum(score_of(c.cuts) for c in found)


def _better(
    best: tuple[float, list[Communicator]] | None, found: list[Communicator]
) -> tuple[float, list[Communicator]]:
    score = _score(found)
    return best if best is not None and best[0] <= score else (score, found)


def _whole(found: Sequence[Communicator]) -> bool:
    """Nothing of it is unread, and no hint of hosts or tags is left aside but where a trainer's
    plan bears the ring out: ranks in it may stand in any order."""
    return bool(found) and all(
        not c.cuts.unread and (c.ring.penalty < 2 or c.habits.buckets) for c in found
    )


@dataclass(frozen=True, slots=True)
class _Search:
    """What rows are read with."""

    streams: Sequence[Stream]
    grants: Sequence[Grants]
    rules: tuple[NcclEra, ...]
    logged: Sequence[RingOrder]
    budget: SendBudget | None
    known: dict[tuple[tuple[int, int], frozenset[int]], list[Communicator]] = field(
        default_factory=dict
    )
    """Rows that were read already, by the purse and the identity of their streams."""
    ranks: set[int] = field(default_factory=set)
    """Of rings that a trainer's plan bears out."""

    def of(self, row: Row, depth: int) -> list[Communicator]:
        """The row as one communicator, or as several if only these leave nothing unread; empty
        where it forms no ring."""
        large = sum(len(stream.sends) for stream in row) > MANY_SENDS
        one = self._one(row, FIRST_PURSE if large else PURSE)
        if _whole(one) and _score(one) < CONTRADICTION_COST:
            return one
        if _whole(one):
            several = self.parted(row, min(depth, 1), most=LIKELY_PARTS)
            return several if several and _score(several) < _score(one) else one
        if several := self.parted(row, depth):
            return several
        return self._one(row, PURSE if depth == DEPTH else PART_PURSE)

    def _one(self, row: Row, purse: tuple[int, int]) -> list[Communicator]:
        name = (purse, frozenset(map(id, row)))
        if name not in self.known:
            self.known[name] = found = self._likelier(row, purse)
            planned = (c for c in found if c.habits.buckets and not c.cuts.unread)
            self.ranks.update(c.ring.ranks for c in planned)
        return self.known[name]

    def _likelier(self, row: Row, purse: tuple[int, int]) -> list[Communicator]:
        """As gathers and reduce-scatters, if these leave as little unread as another reading and
        no start-up was seen; at once, if there can be none and nothing is left."""
        none = not counts_seen(row) and all(len(s.sends) == s.stop for s in row)
        sharded = self._sharded(row, purse) if none else []
        if sharded and not sharded[0].cuts.unread:
            return sharded
        other = self._read(row, purse)
        if other and other[0].habits.shapes:
            return other
        sharded = sharded if none else self._sharded(row, purse)
        unread = other[0].cuts.unread if other else float("inf")
        return sharded if sharded and sharded[0].cuts.unread <= unread else other

    def _read(self, row: Row, purse: tuple[int, int]) -> list[Communicator]:
        group, left = self._asked(row, purse)
        found = read_group(group, self.rules, left, near=self.ranks, logged=self.logged)
        return [] if found is None else [found]

    def _sharded(self, row: Row, purse: tuple[int, int]) -> list[Communicator]:
        """As gathers and reduce-scatters, if it gathers anything again."""
        if not gathers_again(row):
            return []
        found = read_gathers(*self._asked(row, purse), self.rules)
        return [] if found is None else [found]

    def _asked(self, row: Row, purse: tuple[int, int]) -> tuple[Group, Purse]:
        sends = sum(len(stream.sends) for stream in row)
        group = alone(row, unpaired(row, self.streams, self.grants))
        return group, Purse.of(purse, sends, self.budget)

    def parted(self, row: Row, depth: int, most: int | None = None) -> list[Communicator]:
        """The row as several communicators of the same ranks; empty unless these leave nothing
        unread. Where sends were lost, what is left fits too much to tell."""
        if not depth or any(len(s.sends) < s.stop or not s.from_start for s in row):
            return []
        return next(
            (found for way in islice(parts(row), most) if (found := self.all_of(way, depth - 1))),
            [],
        )

    def all_of(self, way: Sequence[Row], depth: int) -> list[Communicator]:
        """Rows that only numbers or times hold apart; empty unless sizes bear that out."""
        if any(len({(s.key.source, s.key.destination) for s in row}) < 2 for row in way):
            return []
        found: list[Communicator] = []
        for row in way:
            read = self.of(row, depth)
            if not _whole(read) or not all(map(tells, read)):
                return []
            found += read
        return [] if in_step(found) else found

    def united(self, found: Sequence[Communicator]) -> list[Communicator]:
        """Rows that were joined amid their run and that carry something at the same times, as the
        channels of one communicator; empty where these carry as much as each other, as two rings
        of one size may, or do not fit."""
        streams = [s for c in found for edge in c.ring.edges for s in edge.streams]
        if len(found) < 2 or all(s.from_start for s in streams) or not in_step(found):
            return []
        one = self._one(tuple(streams), PURSE)
        parts = (c for of in one for cut in of.cuts.found for c in cut.schedules)
        uneven = any(len({sum(s.wire_bytes for s in c) for c in of if c}) > 1 for of in parts)
        return one if _whole(one) and uneven and _score(one) < CONTRADICTION_COST else []

    def around(self, made: Sequence[Row]) -> list[Communicator]:
        """All rows as one ring, if their links make up one and copies of what is forwarded bear it
        out; else empty."""
        row = tuple(stream for own in made for stream in own)
        if path_of(alone(row, unpaired(row, self.streams, self.grants))) is None:
            return []
        one = self._one(row, PURSE)
        if not one or one[0].ring.ranks < 3 or len(one[0].ring.edges) < 2:
            return []
        same = len(one[0].ring.edges) > 2 or forwards(one[0].cuts, own=[0])
        return one if same and _whole(one) and _score(one) < CONTRADICTION_COST else []
