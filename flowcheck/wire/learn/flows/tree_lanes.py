"""Which connections plain trees have where nodes have several NIC ports, and their channels.

Channels are spread over the NICs: channels 0, 1, 2, ... lie on the NICs in the order of the GPUs
nearest to them, and begin again behind the last one. Each NIC numbers its queue pairs by itself, so
that numbers order one port's connections alone; no message tells the order of NICs. What goes up a
channel's tree comes down it between the same two ports, in messages of the same sizes and each of
them later, which tells the tree. One way of the two may be the ring's connection, never both.

Source: NCCL src/graph/search.cc (ncclTopoCompute: a channel of a tree enters and leaves a node by
one NIC), src/graph/connect.cc (ncclTopoPreset, connectTrees), src/transport.cc
(ncclTransportP2pSetup).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice, product

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.double_binary_tree import (
    PerTree,
    is_second,
    sum_passes_down,
    tree_parents,
)
from flowcheck.wire.learn.flows.port_orders import Ports, firsts, ports_of
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.flows.trees import MOST_WAYS, Link, around, tree_channels
from flowcheck.wire.learn.flows.two_nodes import PER_TREE, begun_by, found_behind, sent_on, turned

MOST_CHANNELS = 64
"""NCCL src/include/device.h, MAXCHANNELS."""

MOST_TRIES = 1 << 14
"""A choice: of ways in which connections may be trees' and the ring's. Strangers' frames may leave
more of them open than anybody has time for."""

Lanes = dict[Link, dict[Ports, list[Stream]]]
Named = dict[Link, dict[int, Stream]]
"""{nodes: {channel: a connection of its tree}}."""
Sharing = dict[Link, PerTree]
"""{nodes: which of their trees pass on the ring's connections}."""


@dataclass(frozen=True, slots=True)
class TreeLanes:
    """Connections as of plain trees."""

    found: int
    used: int
    """Channels on which trees carried something."""
    own: Mapping[Link, Mapping[int, Stream]]
    """Those that the ring has not."""
    joined: Mapping[Link, Mapping[int, Stream]]
    """Those that are the ring's too."""
    shared: Mapping[Link, PerTree]
    late: tuple[Stream, ...] = ()
    """Of `joined`, those that the ring's start-up did not use."""

    def passing(self, link: Link) -> PerTree:
        """Which trees pass on connections that the ring has not."""
        ring = self.shared.get(link, (True, True))
        return not ring[0], not ring[1]


NO_TREES = TreeLanes(0, 0, {}, {}, {})


def tree_lanes(
    ring: Mapping[Link, Sequence[Stream]],
    beside: Mapping[Link, Sequence[Stream]],
    gpus: int,
    nodes: int,
    *,
    with_nvls: bool,
) -> Iterator[TreeLanes]:
    """Ways in which these are connections of trees, all that are beside the ring. with_nvls: what
    is in Simple is of other trees."""
    links = _Links(_by_ports(ring), _by_ports(beside), gpus, nodes, with_nvls)
    yield from islice(links.ways(), MOST_WAYS)


def _by_ports(links: Mapping[Link, Sequence[Stream]]) -> Lanes:
    found: Lanes = {}
    for link, own in links.items():
        lanes = found.setdefault(link, defaultdict(list))
        for stream in own:
            lanes[ports_of(stream, link)].append(stream)
    return found


@dataclass(frozen=True)
class _Links:
    """The ring's connections, and those beside them."""

    ring: Lanes
    trees: Lanes
    gpus: int
    nodes: int
    with_nvls: bool

    def ways(self) -> Iterator[TreeLanes]:
        pairs = {(min(link), max(link)) for link in self.trees if self._due(link, 2, 1)}
        totals = [self._count(pair) + self._count(pair[::-1]) for pair in pairs]
        if not pairs or not all(totals) or any(map(self._is_open, pairs)):
            return
        slots = max(len(self._order(pair)) for pair in pairs)
        tries = (
            (used, found, shared)
            for used in range(min(MOST_CHANNELS, max(totals)), 0, -1)
            for found in range(used, min(slots, used) - 1, -1)
            for shared in self._sharings(found, used)
        )
        for used, found, shared in tries:
            named = self._named(found, used, shared)
            if named is not None and self._comes_down(*named, found, used):
                yield TreeLanes(found, used, *named, shared, self._late(named[1]))

    def _late(self, joined: Named) -> tuple[Stream, ...]:
        used = {id(s) for lanes in self.ring.values() for own in lanes.values() for s in own}
        return tuple(s for own in joined.values() for s in own.values() if id(s) not in used)

    def _count(self, link: Link) -> int:
        return sum(map(len, self.trees.get(link, {}).values()))

    def _due(self, link: Link, used: int, found: int) -> list[int]:
        return tree_channels(link, self.nodes, found, used)

    def _sharings(self, found: int, used: int) -> Iterator[Sharing]:
        """That leave as many connections to trees as there are."""
        ways: list[list[tuple[Link, PerTree]]] = []
        for link in self.trees:
            due = [is_second(c, found) for c in self._due(link, used, found)]
            here = set(due)
            fits = [
                shared
                for shared in (PER_TREE if around(link, self.nodes) else PER_TREE[:1])
                if self._leaves(link, due, shared)
                and all(second in here or not shared[second] for second in (False, True))
            ]
            ways.append([(link, shared) for shared in fits])
        for chosen in product(*ways):
            if next(self._left, None) is None:
                return
            made = dict(chosen)
            back = (made.get(link[::-1], (False, False)) for link in made)
            if not any(
                both == (True, True)
                for one, two in zip(made.values(), back, strict=True)
                for both in zip(one, two, strict=True)
            ):
                yield made

    def _leaves(self, link: Link, due: Sequence[bool], shared: PerTree) -> bool:
        """As many connections as trees may have beside the ring's."""
        apart = sum(not shared[second] for second in due)
        return apart <= self._count(link) if any(shared) else apart == self._count(link)

    def _order(self, pair: Link) -> list[Ports]:
        """Ports of two nodes in the order of their GPUs."""
        if pair not in self._orders:
            own = self._firsts(pair)
            self._orders[pair] = sorted(own, key=lambda ports: (own[ports], ports))
        return self._orders[pair]

    def _is_open(self, pair: Link) -> bool:
        """Whether the order of two ports is told by nothing: an address says nothing of GPUs."""
        firsts = self._firsts(pair)
        return len({*firsts.values()}) < len(firsts)

    def _firsts(self, pair: Link) -> dict[Ports, int]:
        """{ports: the GPU that they are nearest to}, of those that trees have."""
        streams = {
            link: [
                stream
                for lanes in (self.trees, self.ring)
                for own in lanes.get(link, {}).values()
                for stream in own
            ]
            for link in (pair, pair[::-1])
        }
        mine = self.trees.get(pair, {}).keys() | self.trees.get(pair[::-1], {}).keys()
        every = firsts(streams, pair, self.gpus)
        return {ports: every[ports] for ports in mine}

    def _named(self, found: int, used: int, shared: Sharing) -> tuple[Named, Named] | None:
        """(connections that the ring has not, that it has too); None: some port has not as many.
        A port's are the ring's first, each in the order of channels."""
        named: Named = {}
        joined: Named = {}
        for link, lanes in self.trees.items():
            order = self._order((min(link), max(link)))
            due: dict[Ports, list[int]] = defaultdict(list)
            for channel in self._due(link, used, found):
                due[order[channel % found % len(order)]].append(channel)
            named[link], joined[link] = {}, {}
            for ports in due.keys() | lanes.keys():
                ring, every = self._at(link, ports)
                apart = [c for c in due[ports] if not shared[link][is_second(c, found)]]
                first = every[: max(0, len(every) - len(apart))]
                if not ring <= set(map(id, first)):
                    return None
                both = len(apart) < len(due[ports])
                turns = _turns(order.index(ports), len(order), found)
                own = dict(zip(turns, first, strict=False)) if both else {}
                if len(every) - len(first) < len(apart) or not own.keys() >= {*due[ports]} - {
                    *apart
                }:
                    return None
                if not both and len(first) > len(ring):
                    return None
                named[link] |= zip(apart, every[len(first) :], strict=True)
                joined[link] |= own
        return named, joined

    def _at(self, link: Link, ports: Ports) -> tuple[set[int], list[Stream]]:
        """(identities of the ring's connections there, all of them in the order of numbers)."""
        if (link, ports) not in self._lanes:
            ring = self.ring.get(link, {}).get(ports, [])
            every = [*ring, *self.trees.get(link, {}).get(ports, [])]
            every.sort(key=lambda stream: stream.key.dest_qp)
            self._lanes[link, ports] = set(map(id, ring)), every
        return self._lanes[link, ports]

    def _comes_down(self, own: Named, joined: Named, found: int, used: int) -> bool:
        """What goes up each channel's tree comes down it."""
        for link in own:
            for channel in self._due(link, used, found):
                tree = tree_parents(self.nodes, is_second(channel, found))
                if sum_passes_down(*link, tree):
                    continue
                back = link[::-1]
                up, down = own[link].get(channel), own.get(back, {}).get(channel)
                if up is not None and down is not None:
                    fits = begun_by(self._sent[id(up)], self._sent[id(down)])
                elif up is not None:
                    fits = self._fits(up, joined[back][channel], goes_up=True)
                else:
                    fits = down is not None and self._fits(
                        down, joined[link][channel], goes_up=False
                    )
                if not fits:
                    return False
        return True

    def _fits(self, one: Stream, ring: Stream, *, goes_up: bool) -> bool:
        name = id(one), id(ring), goes_up
        if name not in self._known:
            own, of = self._sent[id(one)], self._sent[id(ring)]
            self._known[name] = (
                found_behind(own, of, all_of_it=False)
                if goes_up
                else found_behind(turned(own), turned(of), all_of_it=True)
            )
        return self._known[name]

    @cached_property
    def _left(self) -> Iterator[int]:
        """Tries that are left."""
        return iter(range(MOST_TRIES))

    @cached_property
    def _orders(self) -> dict[Link, list[Ports]]:
        return {}

    @cached_property
    def _lanes(self) -> dict[tuple[Link, Ports], tuple[set[int], list[Stream]]]:
        return {}

    @cached_property
    def _known(self) -> dict[tuple[int, int, bool], bool]:
        return {}

    @cached_property
    def _sent(self) -> dict[int, NDArray[np.int64]]:
        """{id: [message] (time, bytes, protocol), of plain trees or the ring}."""
        return {
            id(stream): sent_on(stream, with_simple=not self.with_nvls)
            for lanes in (self.trees, self.ring)
            for by_ports in lanes.values()
            for own in by_ports.values()
            for stream in own
        }


def _turns(port: int, ports: int, found: int) -> Iterator[int]:
    """Channels, without end, on the port of this number; found: of them, then come their copies."""
    for first in count(0, found):
        yield from range(first + port, first + found, ports)
