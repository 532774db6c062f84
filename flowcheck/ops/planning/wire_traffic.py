"""Messages, bytes and frames of planned collectives on one port, by NCCL's schedule. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_commands import NODES, TOO_MANY_RANKS, TWO_RANKS
from flowcheck.findings.catalog.refused_settings import FROM_TO, ONE_OF
from flowcheck.ops.planning.ddp_collectives import PlannedCollective
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol
from flowcheck.wire.collectives.ring_schedule import Schedule, collective, sends_per_chunk

FRAME_BYTES = 14 + 20 + 8 + 12 + 4
"""Header bytes of each frame: Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4 (IB specification vol.
1, chapter 9 and annex A17)."""
MESSAGE_BYTES = 16 + 4
"""Additional header bytes per message: RETH 16, immediate 4 (IB specification vol. 1, chapter
9)."""
LL_BELOW_BYTES = 256 << 10
"""Bytes. Where no protocol is stated, smaller collectives count as LL and larger ones as Simple. A
choice: NCCL decides with a cost model of the machine, which is not known here."""
PATH_MTUS = (256, 512, 1024, 2048, 4096)
MOST_RANKS = 4096
"""Largest supported number of ranks: eight times the longest ring that was tested. A choice: time
and memory of a plan grow with the number of ranks."""


class MirroredPort(msgspec.Struct, frozen=True, kw_only=True):
    """A ring and the port of it that is mirrored. Construction raises ConfigError that names the
    option of an invalid value."""

    ranks: int
    channels: int = 1
    protocol: Protocol | None = None
    """NCCL's protocol; None: chosen by size (LL_BELOW_BYTES)."""
    era: NcclEra = msgspec.field(default=NcclEra.V2_29, name="rule")
    ring_index: int = 0
    """Ring index of the rank at the mirrored port, or of the first rank of its node, from 0. Rank
    0 has ring index 0."""
    gpus: int = 1
    """Ranks of the node at the port: the first one receives from the network, the last one sends
    to it."""
    pmtu_bytes: int = 4096

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ConfigError("--world", self.ranks, TWO_RANKS())
        if self.ranks > MOST_RANKS:
            raise ConfigError("--world", self.ranks, TOO_MANY_RANKS(MOST_RANKS))
        if not 1 <= self.channels <= 64:
            raise ConfigError("--channels", self.channels, FROM_TO(least=1, most=64))
        if not 0 <= self.ring_index < self.ranks:
            right = FROM_TO(least=0, most=self.ranks - 1)
            raise ConfigError("--ring-index", self.ring_index, right)
        if self.gpus < 1 or self.ranks % self.gpus or self.ranks < 2 * self.gpus:
            raise ConfigError("--gpus", self.gpus, NODES(self.ranks))
        if self.pmtu_bytes not in PATH_MTUS:
            raise ConfigError("--pmtu", self.pmtu_bytes, ONE_OF(PATH_MTUS))

    @property
    def last_index(self) -> int:
        """Ring index of the rank that sends to the next node."""
        return (self.ring_index + self.gpus - 1) % self.ranks

    def protocol_of(self, planned: PlannedCollective) -> Protocol:
        """The protocol of a collective: as stated, else LL or Simple by its size."""
        if self.protocol is not None:
            return self.protocol
        return Protocol.LL if planned.work_bytes < LL_BELOW_BYTES else Protocol.SIMPLE


class PortTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic in one direction of the port."""

    messages: int = 0
    bytes: int = 0
    """Payload bytes: data, and the flags of LL and LL128."""
    frames: int = 0

    @property
    def frame_bytes(self) -> int:
        """Bytes of the mirrored frames, headers included. Acknowledgements and clear-to-send
        messages are not included; they are at most one small frame per message."""
        return self.bytes + FRAME_BYTES * self.frames + MESSAGE_BYTES * self.messages

    def __add__(self, other: PortTraffic) -> PortTraffic:
        return PortTraffic(
            messages=self.messages + other.messages,
            bytes=self.bytes + other.bytes,
            frames=self.frames + other.frames,
        )

    def times(self, count: int) -> PortTraffic:
        """The traffic of `count` repetitions."""
        return PortTraffic(
            messages=self.messages * count, bytes=self.bytes * count, frames=self.frames * count
        )


class CollectiveTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """A planned collective as traffic at the port."""

    planned: PlannedCollective
    protocol: Protocol
    channels: int
    """Number of channels that carry data."""
    loops: int
    """Loops of the ring algorithm, on the channel with the most."""
    chunk_bytes: int
    """Bytes of the largest chunk."""
    slices: int
    """Messages per chunk."""
    out: PortTraffic
    """Traffic from the rank, or node, at the port to the next one of the ring. `into` is the
    traffic from the previous one."""
    into: PortTraffic = msgspec.field(name="in")


def traffic_of_collective(planned: PlannedCollective, wire: MirroredPort) -> CollectiveTraffic:
    """Messages, bytes and frames of a collective at the port, by NCCL's ring schedule
    (wire/collectives/ring_schedule.py)."""
    protocol = wire.protocol_of(planned)
    before = (wire.ring_index - 1) % wire.ranks
    edges = [
        _edge(planned.kind, planned.work_bytes, planned.element_bytes, sender, protocol, wire)
        for sender in (wire.last_index, before)
    ]
    (out, *shape), (into, *other) = edges
    # A broadcast never comes back to its root: the other direction tells its chunks.
    used, loops, chunk = shape if shape[0] else other
    return CollectiveTraffic(
        planned=planned,
        protocol=protocol,
        channels=used,
        loops=loops,
        chunk_bytes=chunk,
        slices=sends_per_chunk(planned.kind, protocol),
        out=out,
        into=into,
    )


def total_traffic(costs: Iterable[CollectiveTraffic]) -> tuple[PortTraffic, PortTraffic]:
    """Sum of the traffic as (out, in)."""
    out = into = PortTraffic()
    for cost in costs:
        out, into = out + cost.out, into + cost.into
    return out, into


@lru_cache(maxsize=4096)
def _edge(
    kind: CollectiveKind,
    size: int,
    element_bytes: int,
    sender: int,
    protocol: Protocol,
    wire: MirroredPort,
) -> tuple[PortTraffic, int, int, int]:
    """(what the edge carries, channels in use, loops, bytes of the largest chunk)."""
    schedule = collective(
        kind,
        size,
        sender=sender,
        element_bytes=element_bytes,
        ranks=wire.ranks,
        channels=wire.channels,
        protocol=protocol,
        era=wire.era,
    )
    sends = [send for channel in schedule for send in channel]
    carried = PortTraffic(
        messages=len(sends),
        bytes=sum(send.wire_bytes for send in sends),
        frames=sum(max(1, -(-send.wire_bytes // wire.pmtu_bytes)) for send in sends),
    )
    loops = max((channel[-1].loop + 1 for channel in schedule if channel), default=0)
    return carried, sum(map(bool, schedule)), loops, _largest_chunk(schedule)


def _largest_chunk(schedule: Schedule) -> int:
    sizes: dict[tuple[int, int, int, bool], int] = {}
    for channel in schedule:
        for send in channel:
            place = (send.channel, send.loop, send.chunk, send.final)
            sizes[place] = sizes.get(place, 0) + send.data_bytes
    return max(sizes.values(), default=0)
