"""Which channels of a ring are between which two GPUs, where trees have some of its connections
too."""

from __future__ import annotations

from collections.abc import Mapping

from flowcheck.wire.collectives.nvls_shape import NO_HEAD
from flowcheck.wire.learn.flows.channels import marks_of
from flowcheck.wire.learn.flows.groups import Group
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.flows.trees import Link, RingHeads

Lane = tuple[str, str, int]
"""(address that writes, address that reads, which GPU of its node writes)."""


class RingLanes:
    """A ring's connections, in an order that is tried."""

    def __init__(
        self, group: Group, gpus: int, joined: Mapping[Link, Mapping[int, Stream]]
    ) -> None:
        """joined: {nodes: {channel: a connection that plain trees have too}}."""
        self._group, self._gpus = group, gpus
        self._full = max(group.links, key=lambda link: len(group.links[link]))
        self.count = len(group.links[self._full])
        """Channels that the ring used."""
        self.agrees = True
        """What links carried alike is on the same channel, and what trees have too has theirs."""
        self.known: dict[int, int] = {}
        """{id of a connection of the ring: its channel}."""
        for link in group.links:
            self.known |= self._paired(link)
        told = {id(s): c for own in joined.values() for c, s in own.items()}
        self.agrees &= all(self.known.get(one, c) == c for one, c in told.items())

    @property
    def ascends(self) -> bool:
        """Each link's connections stand in the order of the channels that they are told to have."""
        rows = ([self.known[id(s)] for s in row] for row in self._group.links.values())
        return all(row == sorted(row) for row in rows)

    def _paired(self, link: tuple[str, str]) -> dict[int, int]:
        """By what the connections that carry all channels carried too: a broadcast passes them on
        the same channel. To its root it comes on some of them only."""
        full, own = self._group.links[self._full], self._group.links[link]
        if link == self._full:
            return {id(stream): place for place, stream in enumerate(own)}
        marks = [marks_of(stream) for stream in full]
        found: dict[int, int] = {}
        for stream in own:
            alike = [len(marks_of(stream) & of) for of in marks]
            if max(alike) and alike.count(max(alike)) == 1:
                found[id(stream)] = alike.index(max(alike))
        if len(own) == len(full):
            placed = {id(stream): place for place, stream in enumerate(own)}
            self.agrees &= all(placed[one] == place for one, place in found.items())
            return placed
        left = [place for place in range(len(full)) if place not in found.values()]
        rest = [stream for stream in own if id(stream) not in found]
        return found | {id(stream): place for stream, place in zip(rest, left, strict=False)}

    def lane_of(self, stream: Stream) -> Lane:
        return stream.key.source, stream.key.destination, (stream.tag or 0) % self._gpus

    def channels(self, link: tuple[str, str], lane: Lane) -> list[int] | None:
        """Those that the ring has there, ascending; those that carried nothing as the channels that
        they are copies of. None: nothing tells."""
        full = [self.lane_of(stream) for stream in self._group.links[self._full]]
        own: list[Lane | None] = [None] * self.count
        for stream in self._group.links[link]:
            own[self.known[id(stream)]] = self.lane_of(stream)
        for period in range(1, self.count + 1):
            copies = [{own[c] for c in range(at, self.count, period)} for at in range(period)]
            if full[period:] == full[:-period] and all(len(of - {None}) == 1 for of in copies):
                lanes = [next(iter(of - {None})) for of in copies]
                return [c for c in range(self.count) if lanes[c % period] == lane]
        return None

    def heads(
        self, link: tuple[str, str], head_of: Mapping[int, int], *, joined: bool
    ) -> RingHeads:
        """Which heads the ring's connections to the next node join, if there are any, and which
        channels they are."""
        streams = self._group.links.get(link, ())
        by_channel = [NO_HEAD] * self.count * joined
        for stream in streams if joined else ():
            by_channel[self.known[id(stream)]] = head_of.get(id(stream), NO_HEAD)
        return tuple(by_channel), tuple(self.known[id(stream)] for stream in streams)


def node_names(link: Link) -> tuple[str, str]:
    """As a group has them."""
    return f"host {link[0]}", f"host {link[1]}"
