"""NCCL's net_ib transport in bytes: clear-to-send entries, buffer slots, immediates, LL and
LL128 lines.

Only what learning needs: a few messages at a time, in numpy. Bulk unpacking is C's.

Sources: NCCL src/transport/net_ib.cc (struct ncclIbSendFifo; since 2.30 net_ib/p2p.h),
src/include/device.h (union ncclLLFifoLine, NCCL_LL128_*), src/device/prims_ll128.h.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import count, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import (
    NCCL_STEPS,
    SLOT_BYTES,
    NcclEra,
    Protocol,
)

_BY_CAPACITY = {
    65_536: Protocol.LL,
    614_400: Protocol.LL128,
    1_048_576: Protocol.SIMPLE,
    524_288: Protocol.SIMPLE,
    131_072: Protocol.SIMPLE,
}
"""Default receive capacities: a slot; two slots of a ring reduction; a point-to-point chunk."""

_MOST_CAPACITY = 1 << 30
"""src/include/net.h, NCCL_MAX_NET_SIZE_BYTES as the proxy uses it: 1 GiB per request."""
_MOST_RANKS = 1 << 20
"""Ranks that a clear-to-send's tag may name. A choice: above every machine; more bytes of other
writes would pass."""
MOST_RECEIVES = 8
"""src/transport/net_ib.cc, NCCL_NET_IB_MAX_RECVS."""
_MOST_INDEX = (1 << 62) - 1
"""Above what any connection counts to."""
_FIFO_SLOTS = (256, 64, 8)
"""Length of the sender's FIFO: MAX_REQUESTS since 2.19, in 2.12-2.18, and before."""


class CtsLayout(StrEnum):
    """Layouts of a clear-to-send entry, named by the releases that write it."""

    V2_10 = "2.10-2.11"
    V2_12 = "2.12-2.19"
    V2_20 = "2.20-2.23"
    V2_24 = "2.24-2.29"
    V2_30 = ">=2.30"


@dataclass(frozen=True, slots=True)
class _Entry:
    form: struct.Struct
    order: str
    """Its fields: a address, s size, k rkey, n receives, t tag, i index, r ready."""
    fifo_stride_bytes: int
    """Distance of consecutive entries in the sender's FIFO: 8 entries a slot since 2.12."""
    eras: tuple[NcclEra, ...]


_ENTRIES = {
    CtsLayout.V2_12: _Entry(struct.Struct("<QiIIIQ"), "asknti", 256, (NcclEra.V2_19,)),
    CtsLayout.V2_10: _Entry(struct.Struct("<QiIII8x"), "asikr", 32, (NcclEra.V2_19,)),
    CtsLayout.V2_20: _Entry(
        struct.Struct("<Qi2III4xQ24x"),
        "askknti",
        512,
        (NcclEra.V2_20, NcclEra.V2_22, NcclEra.V2_23),
    ),
    CtsLayout.V2_24: _Entry(
        struct.Struct("<QQ4IIIQ16x"),
        "askkkknti",
        512,
        (NcclEra.V2_23, NcclEra.V2_26, NcclEra.V2_29),
    ),
    CtsLayout.V2_30: _Entry(struct.Struct("<QQ8IIIQ"), "askkkkkkkknti", 512, (NcclEra.V2_29,)),
}

_LEAST_ENTRY_BYTES = math.gcd(*(entry.form.size for entry in _ENTRIES.values()))
"""What every entry's size is a multiple of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearToSend:
    """What a receiver grants: the first entry of a clear-to-send message."""

    address: int
    capacity_bytes: int
    rkeys: tuple[int, ...]
    """One per device of a fused NIC; 0 where there is none."""
    tag: int
    """Rank of the sender of the data; 0 in the oldest layout, which has none."""
    index: int
    """Number of the data message it allows, from 0."""
    receives: int
    """More than 1 only for grouped receives, whose payload has that many entries."""
    layout: CtsLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearToSends:
    """Those of one connection as columns, [message] each."""

    layout: CtsLayout
    addresses: NDArray[np.uint64]
    capacities_bytes: NDArray[np.int64]
    rkeys: NDArray[np.int64]
    """[message, device]"""
    tags: NDArray[np.int64]
    indices: NDArray[np.int64]
    receives: NDArray[np.int64]

    def distinct(self) -> list[ClearToSend]:
        """The first one of each place and size that they grant."""
        _, first, inverse = np.unique(self.addresses, return_index=True, return_inverse=True)
        alike = (self.capacities_bytes == self.capacities_bytes[first][inverse]).all()
        if not alike or (self.rkeys != self.rkeys[first][inverse]).any():
            keys = zip(*self.rkeys.T.tolist(), strict=True)
            rows = zip(self.addresses.tolist(), self.capacities_bytes.tolist(), keys, strict=True)
            first = np.array(sorted({row: i for i, row in reversed([*enumerate(rows)])}.values()))
        return [
            ClearToSend(
                address=int(self.addresses[i]),
                capacity_bytes=int(self.capacities_bytes[i]),
                rkeys=tuple(self.rkeys[i].tolist()),
                tag=int(self.tags[i]),
                index=int(self.indices[i]),
                receives=int(self.receives[i]),
                layout=self.layout,
            )
            for i in np.sort(first).tolist()
        ]


def eras_of(layout: CtsLayout) -> tuple[NcclEra, ...]:
    """The partition eras that a release writing `layout` can be of."""
    return _ENTRIES[layout].eras


def recognise_cts(
    payloads: Sequence[NDArray[np.uint8]], addresses: Sequence[int] | None = None
) -> ClearToSends | None:
    """A flow's writes as clear-to-send entries, or None if they are none: one layout fits all, the
    index grows, and each is written to the place in the FIFO that its index asks for, when the
    `addresses` are given. Messages may be missing; repeats are refused."""
    lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
    if not len(lengths) or (lengths % _LEAST_ENTRY_BYTES).any() or not lengths.all():
        return None
    joined = np.concatenate(payloads)
    for layout in _ENTRIES:
        found = _decoded(lengths, joined, layout)
        if found is not None and _in_sequence(found, addresses):
            return found
    return None


def protocol_of_capacity(capacity_bytes: int) -> Protocol | None:
    """The protocol whose default buffers have receives of this size; None: none has."""
    return _BY_CAPACITY.get(capacity_bytes)


def protocol_of_addresses(addresses: Sequence[int]) -> Protocol | None:
    """The protocol whose slots consecutive messages of one rkey walk through; None if no single
    one does. Needs two messages; a gap in the sequence reads as None."""
    deltas = {b - a for a, b in pairwise(addresses)}
    for protocol, slot in SLOT_BYTES.items():
        for steps in (1, 2) if protocol is Protocol.SIMPLE else (1,):
            if deltas and deltas <= {steps * slot, (steps - NCCL_STEPS) * slot}:
                return protocol
    return None


def immediate_orders(word: int, size_bytes: int) -> tuple[str, ...]:
    """Byte orders in which the immediate, read as a big-endian `word`, says the size of a message:
    "little" before 2.29, "big" since; both where they agree, none if it is not the size."""
    raw = word.to_bytes(4, "big")
    orders: tuple[Literal["little", "big"], ...] = ("little", "big")
    return tuple(order for order in orders if int.from_bytes(raw, order) == size_bytes)


def immediate_sizes(immediate: int) -> tuple[int, int]:
    """The size an immediate may state: NCCL before 2.29 writes it in host order."""
    return int.from_bytes(immediate.to_bytes(4, "big"), "little"), immediate


def ll_flags(payload: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """[lines, 2]: both flags of every whole LL line. A message has one flag in all of them."""
    whole = payload[: len(payload) // 16 * 16]
    return np.ascontiguousarray(whole).view("<u4").reshape(-1, 4)[:, 1::2]


def unpack(
    protocol: Protocol, payload: NDArray[np.uint8], data_bytes: int, *, linear: bool = False
) -> NDArray[np.uint8]:
    """[data_bytes]: the data of a whole message, without flags and in tensor order. linear: LL128
    is that of before 2.10. Raises ValueError if the payload cannot hold that much."""
    if protocol is Protocol.LL:
        whole = np.ascontiguousarray(payload[: len(payload) // 16 * 16])
        data = whole.view("<u4").reshape(-1, 4)[:, ::2]
        room = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    elif protocol is Protocol.LL128 and linear:
        room = payload[: len(payload) // 128 * 128].reshape(-1, 128)[:, :120].reshape(-1)
    elif protocol is Protocol.LL128:
        groups = np.ascontiguousarray(payload[: len(payload) // 2048 * 2048])
        words = groups.view("<u8").reshape(-1, 256)
        room = np.take(words, _LL128_WORDS, axis=1).reshape(-1).view(np.uint8)
    else:
        room = payload
    if not 0 <= data_bytes <= len(room):
        raise ValueError(f"{len(payload)} {protocol} bytes cannot hold {data_bytes} data bytes")
    return room[:data_bytes]


def _decoded(
    lengths: NDArray[np.int64], joined: NDArray[np.uint8], layout: CtsLayout
) -> ClearToSends | None:
    """The first entry of each message, if all of them are such. lengths: bytes of each; joined:
    one behind the other."""
    entry = _ENTRIES[layout]
    size = entry.form.size
    if (lengths % size).any():
        return None
    if (lengths > size).any():
        firsts = np.cumsum(lengths) - lengths
        joined = joined[firsts[:, np.newaxis] + np.arange(size)].reshape(-1)
    rows = np.frombuffer(joined, _dtype_of(layout))
    oldest = layout is CtsLayout.V2_10
    keys = [f"k{n}" for n in range(entry.order.count("k"))]
    receives = rows["n"].astype(np.int64) if "n" in entry.order else np.ones(len(rows), np.int64)
    tags = np.zeros(len(rows), np.int64) if oldest else rows["t"].astype(np.int64)
    least = 0 if oldest else 1
    sound = (
        (rows["a"] > 0)
        & (rows["s"] >= 0)
        & (rows["s"] <= _MOST_CAPACITY)
        & (rows[keys[0]] > 0)
        & (tags < _MOST_RANKS)
        & (rows["i"] >= least)
        & (rows["i"] <= _MOST_INDEX)
        & (receives >= 1)
        & (receives <= MOST_RECEIVES)
        & (lengths == receives * size)
    )
    if "r" in entry.order:
        sound &= rows["r"] == 1
    if not sound.all():
        return None
    return ClearToSends(
        layout=layout,
        addresses=rows["a"].astype(np.uint64),
        capacities_bytes=rows["s"].astype(np.int64),
        rkeys=np.stack([rows[name].astype(np.int64) for name in keys], axis=1),
        tags=tags,
        indices=rows["i"].astype(np.int64) - least,
        receives=receives,
    )


@cache
def _dtype_of(layout: CtsLayout) -> np.dtype[np.void]:
    """The fields of an entry by their letters, k0, k1, ... of several keys."""
    entry = _ENTRIES[layout]
    types = {"Q": "<u8", "I": "<u4", "i": "<i4"}
    codes = re.findall(r"(\d*)([QIix])", entry.form.format)
    places: dict[str, tuple[str, int]] = {}
    numbers = count()
    letters = (f"k{next(numbers)}" if letter == "k" else letter for letter in entry.order)
    at = 0
    for times, code in codes:
        if code == "x":
            at += int(times or 1)
            continue
        for _ in range(int(times or 1)):
            places[next(letters)] = types[code], at
            at += struct.calcsize("<" + code)
    return np.dtype(
        {
            "names": list(places),
            "formats": [form for form, _ in places.values()],
            "offsets": [offset for _, offset in places.values()],
            "itemsize": entry.form.size,
        }
    )


def _in_sequence(found: ClearToSends, addresses: Sequence[int] | None) -> bool:
    if (np.diff(found.indices) <= 0).any():
        return False
    stride = _ENTRIES[found.layout].fifo_stride_bytes
    if addresses is None:
        return True
    written = np.array(addresses, np.uint64)
    for slots in _FIFO_SLOTS:
        begins = written - (found.indices % slots * stride).astype(np.uint64)
        if (begins == begins[0]).all():
            return True
    return False


def _ll128_order() -> NDArray[np.intp]:
    """[1920] place of every data byte inside a group of 16 lines (src/device/prims_ll128.h,
    loadRegsBegin and storeRegs: each warp keeps 16 bytes a lane, and the flag of every eighth
    lane displaces the half that its neighbour register set then carries)."""
    order = np.zeros(1920, np.intp)
    for register in range(4):
        half, odd = divmod(register, 2)
        for lane in range(32):
            place = (32 * register + lane) * 16
            if lane % 8 == 7:
                unit, width = (60 * half + lane) * 16 + 8 * odd, 8
            else:
                unit, width = (32 * register - 4 * half + lane - odd * (lane // 8)) * 16, 16
            order[unit : unit + width] = np.arange(place, place + width)
    return order


_LL128_WORDS = _ll128_order()[::8] // 8
"""[240] the same of words of 8 bytes: no smaller part of a word changes its place."""
