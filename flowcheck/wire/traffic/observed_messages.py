"""Flows and RDMA write messages as the mirror ports saw them: the records that shared memory
hands to learning.

Nothing here knows NCCL; nothing here knows a ring. Offsets and sizes are bytes on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # stages of the packet path load no numpy
    import numpy as np
    from numpy.typing import NDArray

Range = tuple[int, int]
"""Half-open [start, stop)."""
NOT_ARRIVED = -1
"""In place of the wire bytes of a message that has not come yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowKey:
    """One direction of one queue pair; `incarnation` counts owners of the same key from 0."""

    source: str
    destination: str
    dest_qp: int
    incarnation: int = 0
    partition: int = 0x7FFF
    """Lower 15 bits of the P_Key; this one every port is in (InfiniBand Architecture, 10.9.1.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFlow:
    """A flow, merged over every mirror point that saw it."""

    key: FlowKey
    udp_source_port: int
    pmtu_bytes: int
    """0 when no packet told it."""
    frames: int
    payload_bytes: int
    psn_missing: int
    """Packets known to exist and never seen, tails of known messages included."""
    psn_duplicate: int
    icrc_bad: int
    acks: int
    first_ns: int
    last_ns: int
    psn_missing_at_end: int = 0
    """Those of `psn_missing` that lie behind the last packet seen."""


OtherBytes = tuple[int, bytes]
"""(where they begin, what another copy has there)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMessage:
    """One RDMA write message, merged over every mirror point, complete or not."""

    flow: FlowKey
    first_psn: int
    """Unwrapped; 2**32 is PSN 0 of a flow seen from its start."""
    packets: int
    number: int | None
    """Ordinal in its flow by transport evidence alone; None when not known."""
    psn_counted: bool
    """`number` is an unbroken count from PSN 0."""
    va: int | None
    rkey: int | None
    immediate: int | None
    """The four immediate bytes as a big-endian word; None for writes without."""
    wire_bytes: int
    """RETH length, or, where the start was lost, what the immediate says."""
    length_inferred: bool = False
    """No RETH was seen: the length is from the immediate."""
    line_flag: int | None = None
    """32-bit words 1 and 3 of some 16-byte line, where equal: an LL flag if LL it is."""
    payload: NDArray[np.uint8] = field(repr=False)
    """[wire_bytes], zero where nothing was seen."""
    missing: tuple[Range, ...] = ()
    """Ranges of `payload` never seen, ascending."""
    conflicts: tuple[Range, ...] = ()
    """Ranges of `payload` in which two copies differ: nobody knows which one is right."""
    others: tuple[OtherBytes, ...] = field(default=(), repr=False)
    """What another copy has in some of `conflicts`."""
    linear_ll128: bool = False
    """If it is LL128, its lines hold data one behind the other, as before NCCL 2.10."""
    first_ns: int
    order: int
    """Discovery order over all flows of one mirror point."""

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def time(self) -> tuple[int, int]:
        """When it was first seen; of equal time stamps the order decides."""
        return self.first_ns, self.order

    @property
    def closes_adaptive_send(self) -> bool:
        """The second half of an adaptive-routing send (NCCL_IB_ADAPTIVE_ROUTING): no payload, no
        address, the size of the plain write before it."""
        return bool(self.immediate) and self.wire_bytes == 0 and not self.va
