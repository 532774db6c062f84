"""Flows of which nothing is missing, as columns: what most flows are, read without an object for
each message.

Every message is whole, of one write with an immediate, the first one begins the connection, and
each goes to a buffer that clear-to-send messages name. Of any other flow streams.py and
numbering.py weigh what there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.connections import (
    NUMBERED_BY_FLAG,
    NUMBERED_BY_GRANT,
    NUMBERED_BY_PSN,
    NUMBERED_BY_SLOT,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives import nccl_wire_format
from flowcheck.wire.collectives.nccl_parameters import LL_LINE_BYTES, Protocol
from flowcheck.wire.learn.flows.granted_buffers import GrantedBuffers
from flowcheck.wire.learn.flows.line_flags import Place, flag_of, line_flag, out_of_step
from flowcheck.wire.learn.flows.numbering import Numbered, in_slots, slot_base
from flowcheck.wire.learn.flows.streams import (
    CODE_OF,
    PROTOCOLS,
    PSN_OF_START,
    SendSeen,
    StreamTable,
)
from flowcheck.wire.traffic.observed_messages import ObservedMessage

_FIELDS = (
    "immediate",
    "va",
    "rkey",
    "first_psn",
    "packets",
    "wire_bytes",
    "first_ns",
    "order",
    "missing",
    "conflicts",
    "length_inferred",
)
_row = attrgetter(*_FIELDS)


@dataclass(slots=True)
class CleanSends(Mapping[int, SendSeen]):
    """Sends of a clean flow by number; a `SendSeen` is made once somebody asks for it."""

    messages: Sequence[ObservedMessage]
    """Ascending PSN, which is the order of their numbers."""
    addresses: NDArray[np.uint64]
    rkeys: NDArray[np.int64]
    immediates: NDArray[np.int64]
    wire_bytes: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    orders: NDArray[np.int64]
    codes: NDArray[np.uint8]
    """The protocol whose buffer each was written to, as of `PROTOCOLS`."""
    flags: dict[int, int]
    """Of those of LL and LL128 by number."""
    _made: dict[int, SendSeen] = field(default_factory=dict)

    def __getitem__(self, number: int) -> SendSeen:
        found = self._made.get(number)
        if found is None:
            if not 0 <= number < len(self.messages):
                raise KeyError(number)
            found = self._made[number] = self._make(number)
        return found

    def get(self, number: int, default: Any = None) -> Any:
        """As of `Mapping`, without an exception for what is not there."""
        return self[number] if 0 <= number < len(self.messages) else default

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and 0 <= number < len(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.messages)))

    def carried(self, number: int) -> tuple[ObservedMessage, Protocol]:
        """What a send was, and by which protocol."""
        return self.messages[number], PROTOCOLS[self.codes[number]]

    def _make(self, number: int) -> SendSeen:
        message, protocol = self.carried(number)
        return SendSeen(
            message=message,
            wire_bytes=message.wire_bytes,
            first_psn=message.first_psn,
            stop_psn=message.first_psn + message.packets,
            closed=True,
            immediate=message.immediate,
            flag=self.flags.get(number),
            granted=protocol,
            protocol=protocol,
            number=number,
        )

    @property
    def stated(self) -> frozenset[tuple[int, int]]:
        """(immediate, bytes) of those that have one which is not zero."""
        pairs = np.unique(np.stack([self.immediates, self.wire_bytes]), axis=1)
        told = zip(*pairs.tolist(), strict=True)
        return frozenset((word, size) for word, size in told if word)

    @property
    def written(self) -> dict[int, tuple[int, int]]:
        """{key: (first address, last address)}."""
        spans = {}
        for key in np.unique(self.rkeys).tolist():
            own = self.addresses[self.rkeys == key]
            spans[key] = int(own.min()), int(own.max())
        return spans

    @property
    def protocol(self) -> Protocol:
        """Of all that hold a line, if it is one; else of most bytes."""
        held = np.unique(self.codes[self.wire_bytes >= LL_LINE_BYTES])
        if len(held) == 1:
            return PROTOCOLS[int(held[0])]
        if not len(held):
            return Protocol.SIMPLE
        counts = np.bincount(self.codes, self.wire_bytes)
        return PROTOCOLS[int(counts.argmax())]

    def table(self) -> StreamTable:
        """As a stream's columns."""
        return StreamTable.of(
            wire_bytes=self.wire_bytes,
            protocol_codes=self.codes.tobytes(),
            times_ns=self.times_ns,
            orders=self.orders,
        )


def clean_sends(messages: Sequence[ObservedMessage], buffers: GrantedBuffers) -> CleanSends | None:
    """The sends of one flow; None: it is not clean. buffers: of its receiver."""
    if not messages or messages[0].immediate is None:
        return None
    columns = list(zip(*map(_row, messages), strict=True))
    immediates, addresses, rkeys, *_, missing, conflicts, inferred = columns
    if None in immediates or not all(addresses) or None in rkeys or any(inferred):
        return None
    if any(missing) or any(conflicts):
        return None
    vas = np.array(addresses, np.uint64)
    words, keys, psns, packets, sizes, times, orders = (
        np.array(column, np.int64) for column in (immediates, rkeys, *columns[3:8])
    )
    stops = psns + packets
    if psns[0] != PSN_OF_START or (stops[:-1] != psns[1:]).any():
        return None
    codes = _codes(vas, keys, buffers)
    if codes is None:
        return None
    flags = _flags(messages, codes)
    if flags is None:
        return None
    if flags:
        spans = zip(psns.tolist(), stops.tolist(), strict=True)
        places = [Place(flags.get(number), *span) for number, span in enumerate(spans)]
        if out_of_step(places, from_start=True):
            return None
    return CleanSends(messages, vas, keys, words, sizes, times, orders, codes, flags)


def _codes(
    addresses: NDArray[np.uint64], rkeys: NDArray[np.int64], buffers: GrantedBuffers
) -> NDArray[np.uint8] | None:
    """[send] whose buffer it was written to; None: nothing tells that of some."""
    places, first, inverse = np.unique(addresses, return_index=True, return_inverse=True)
    if (rkeys[first][inverse] != rkeys).any():
        return None
    told = [
        buffers.protocol_at(address, key)
        for address, key in zip(places.tolist(), rkeys[first].tolist(), strict=True)
    ]
    if None in told:
        return None
    return np.array([CODE_OF[protocol] for protocol in told], np.uint8)[inverse]


def _flags(messages: Sequence[ObservedMessage], codes: NDArray[np.uint8]) -> dict[int, int] | None:
    """The flags of lines by number; None where lines have none."""
    found: dict[int, int] = {}
    for number in np.flatnonzero(codes != CODE_OF[Protocol.SIMPLE]).tolist():
        message = messages[number]
        told = line_flag(message, PROTOCOLS[codes[number]])
        if told is not None:
            found[number] = told[1]
        elif message.wire_bytes:
            return None
    return found


def numbered_clean(
    sends: CleanSends, granted: nccl_wire_format.ClearToSends, *, flags_count: bool
) -> Numbered | None:
    """As numbering.number_sends; None where clear-to-send messages say something else, of an
    address or a protocol, or do not follow each other from the first one on."""
    both = min(len(sends), len(granted.indices))
    if not both or (granted.indices != np.arange(len(granted.indices))).any():
        return None
    if (granted.addresses[:both] != sends.addresses[:both]).any():
        return None
    if (_codes_of(granted.capacities_bytes[:both]) != sends.codes[:both]).any():
        return None
    evidence: list[Finding] = [NUMBERED_BY_GRANT()]
    if flags_count and sends.flags:
        if any(flag_of(number) != flag for number, flag in sends.flags.items()):
            return None
        evidence.append(NUMBERED_BY_FLAG())
    evidence.append(NUMBERED_BY_PSN())
    if flags_count:
        slots = in_slots(sends, slot_base(sends.values()))
        if not all(slots):
            return None
        evidence += [NUMBERED_BY_SLOT()] if slots else []
    return Numbered(sends, tuple(evidence), (), True)


def _codes_of(capacities: NDArray[np.int64]) -> NDArray[np.uint8]:
    """[receive] the protocol that has receives of so many bytes."""
    sizes, inverse = np.unique(capacities, return_inverse=True)
    protocols = map(nccl_wire_format.protocol_of_capacity, sizes.tolist())
    return np.array([CODE_OF[protocol] for protocol in protocols], np.uint8)[inverse]
