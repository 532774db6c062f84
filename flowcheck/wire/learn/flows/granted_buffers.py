"""Which protocol's buffer an address is in, by all clear-to-send messages of a receiver.

A connection has a buffer of eight slots for each protocol, and each buffer is registered by itself
since NCCL 2.12, with a key of its own (src/transport/net.cc, recvProxyConnect): a lost
clear-to-send leaves the protocol of its send told by any other one for the same slot, or by the
key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.collectives.nccl_wire_format import (
    ClearToSend,
    CtsLayout,
    protocol_of_capacity,
)

Told = Mapping[object, set[Protocol | None]]


class GrantedBuffers:
    """The buffers that some clear-to-send messages of one host to another name."""

    def __init__(self, entries: Iterable[ClearToSend]) -> None:
        self._slots: dict[object, set[Protocol | None]] = {}
        self._keys: dict[object, set[Protocol | None]] = {}
        apart = True
        for entry in entries:
            protocol = protocol_of_capacity(entry.capacity_bytes)
            apart = apart and entry.layout is not CtsLayout.V2_10
            for key in entry.rkeys:
                self._slots.setdefault((entry.address, key), set()).add(protocol)
                self._keys.setdefault(key, set()).add(protocol)
        if not apart or any(len(told) > 1 for told in self._keys.values()):
            self._keys = {}  # One key for buffers of several protocols.

    def protocol_at(self, address: int | None, rkey: int | None) -> Protocol | None:
        """Of a write to there; None: nothing tells."""
        if not address:
            return None
        return _one(self._slots, (address, rkey)) or _one(self._keys, rkey)


NONE_GRANTED = GrantedBuffers(())


def _one(told: Told, name: object) -> Protocol | None:
    """What all say."""
    found = told.get(name, set())
    return next(iter(found)) if len(found) == 1 else None
