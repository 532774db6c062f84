"""What receivers grant: the clear-to-send messages of one connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowcheck.wire.collectives import nccl_wire_format
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.flows.numbering import Granted
from flowcheck.wire.learn.flows.streams import SendSeen
from flowcheck.wire.traffic.observed_messages import ObservedFlow

P2P_CAPACITY_BYTES = 131_072
"""What point-to-point receives grant (NCCL src/init.cc, NCCL_P2P_NET_CHUNKSIZE)."""


@dataclass(frozen=True, slots=True)
class Grants:
    """The clear-to-send messages of one flow, by number of the send allowed; they run
    from the receiver of the data to its sender."""

    flow: ObservedFlow
    by_index: Mapping[int, nccl_wire_format.ClearToSend]
    messages: int
    times: Mapping[int, tuple[int, int]]
    """{number: when it was seen}, as `MessageSeen.time`."""

    @property
    def granted(self) -> Granted:
        return {n: (cts.address, self.times[n]) for n, cts in self.by_index.items()}

    @property
    def tag(self) -> int | None:
        """Rank of the rank that may send, if they all name one."""
        tags = {cts.tag for cts in self.by_index.values()}
        return tags.pop() if len(tags) == 1 else None

    @property
    def rings(self) -> bool:
        """The capacities are those that connections of a ring grant."""
        sizes = self.capacities_bytes
        return P2P_CAPACITY_BYTES not in sizes and all(
            map(nccl_wire_format.protocol_of_capacity, sizes)
        )

    @property
    def capacities_bytes(self) -> frozenset[int]:
        return frozenset(cts.capacity_bytes for cts in self.by_index.values())

    def protocol_of(self, send: SendSeen) -> Protocol | None:
        """Of the receive that a send was granted. One of just its size is a registered buffer of
        the user's, which only Simple writes to."""
        cts = self.by_index.get(send.number)
        if cts is None:
            return None
        known = nccl_wire_format.protocol_of_capacity(cts.capacity_bytes)
        return known or (Protocol.SIMPLE if cts.capacity_bytes == send.wire_bytes else None)
