"""What receivers grant: the clear-to-send messages of one connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np

from flowcheck.wire.collectives import nccl_wire_format
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.flows.numbering import Granted
from flowcheck.wire.learn.flows.streams import SendSeen
from flowcheck.wire.traffic.observed_messages import ObservedFlow, ObservedMessage

P2P_CAPACITY_BYTES = 131_072
"""What point-to-point receives grant at most (NCCL src/init.cc, NCCL_P2P_NET_CHUNKSIZE), and how
far apart they lie in the pool that all peers of a channel share (src/transport/net.cc,
sharedBuffersGet). Releases 2.20 to 2.28 grant what an operation's largest send has
(recvProxyProgress, `if (sub->nbytes < sizes[subCount])`): any size, that of LL's buffer among
them, which those of 128 KiB to 1 MiB have."""


P2P_POOL_BYTES = 16 * P2P_CAPACITY_BYTES
"""Of a channel in the pool (src/transport/net.cc, NCCL_SHARED_STEPS)."""


class Grants:
    """The clear-to-send messages of one flow, by number of the send allowed; they run
    from the receiver of the data to its sender."""

    def __init__(
        self,
        flow: ObservedFlow,
        entries: nccl_wire_format.ClearToSends,
        messages: Sequence[ObservedMessage],
        *,
        speed_updates: int = 0,
    ) -> None:
        """messages: [entry] that it came in; speed_updates: messages of that kind between them."""
        self.flow, self.entries, self._messages = flow, entries, messages
        self.speed_updates = speed_updates

    @property
    def layout(self) -> nccl_wire_format.CtsLayout:
        return self.entries.layout

    @cached_property
    def granted(self) -> Granted:
        """When and where each send was allowed."""
        numbers, addresses = self.entries.indices.tolist(), self.entries.addresses.tolist()
        times = (message.time for message in self._messages)
        return dict(zip(numbers, zip(addresses, times, strict=True), strict=True))

    @cached_property
    def _addressed(self) -> Counter[int]:
        return Counter(self.entries.addresses.tolist())

    def hits(self, addresses: Collection[int]) -> int:
        """Entries that grant one of the addresses."""
        return sum(count for one, count in self._addressed.items() if one in addresses)

    @cached_property
    def tag(self) -> int | None:
        """Rank of the rank that may send, if they all name one."""
        tags = np.unique(self.entries.tags)
        return int(tags[0]) if len(tags) == 1 else None

    @property
    def rings(self) -> bool:
        """The capacities are those that connections of a ring grant."""
        sizes = self.capacities_bytes
        return P2P_CAPACITY_BYTES not in sizes and None not in self.protocols and not self.pooled

    @cached_property
    def pooled(self) -> bool:
        """All are receives of the pool of point-to-point sends, by where they lie, whatever their
        sizes. A ring's go through its slots, which are nearer to one another: where these have no
        other size than they grant, two that follow each other tell."""
        sizes, places = self.capacities_bytes, self.entries.addresses
        if not sizes or max(sizes) > P2P_CAPACITY_BYTES:
            return False
        offsets = places - places.min()
        if (offsets % np.uint64(P2P_CAPACITY_BYTES)).any() or offsets.max() >= P2P_POOL_BYTES:
            return False
        if nccl_wire_format.protocol_of_addresses(places.tolist()) is Protocol.SIMPLE:
            return False
        return None in self.protocols or bool((np.diff(self.entries.indices) == 1).any())

    @cached_property
    def capacities_bytes(self) -> frozenset[int]:
        return frozenset(np.unique(self.entries.capacities_bytes).tolist())

    @cached_property
    def protocols(self) -> frozenset[Protocol | None]:
        """Whose buffers have receives of these capacities; None: of one of them nobody's."""
        return frozenset(map(nccl_wire_format.protocol_of_capacity, self.capacities_bytes))

    @property
    def protocol(self) -> Protocol | None:
        """Of all receives; None: of several, or nothing tells."""
        if self.pooled:
            return Protocol.SIMPLE
        return next(iter(self.protocols)) if len(self.protocols) == 1 else None

    @property
    def most_receives(self) -> int:
        """Of one message: more than one are grouped."""
        return int(self.entries.receives.max())

    @cached_property
    def capacity_of(self) -> Mapping[int, int]:
        """{number of a send: bytes it was granted}."""
        sizes = self.entries.capacities_bytes.tolist()
        return dict(zip(self.entries.indices.tolist(), sizes, strict=True))

    def protocol_of(self, send: SendSeen) -> Protocol | None:
        """Of the receive that a send was granted. One of just its size is a registered buffer of
        the user's, which only Simple writes to."""
        size = self.capacity_of.get(send.number)
        if size is None:
            return None
        if self.pooled:
            return Protocol.SIMPLE
        known = nccl_wire_format.protocol_of_capacity(size)
        return known or (Protocol.SIMPLE if size == send.wire_bytes else None)
