"""NCCL's protocols, kinds of collectives, partition eras by release, tunables, and sizes of
messages on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # stages of the packet path load no numpy
    import numpy as np
    from numpy.typing import NDArray


class _Word(StrEnum):
    """Words by which a search looks up millions of times."""

    __hash__ = str.__hash__  # of its text, as `==` is; Enum's own is a function of Python's


class Protocol(_Word):
    LL = "LL"
    LL128 = "LL128"
    SIMPLE = "Simple"


LL_LINE_DATA_BYTES = 8
LL128_GROUP_DATA_BYTES = 1920
"""Data of an LL line, and of a group of 16 LL128 lines."""
LL_LINE_BYTES = 16
LL128_LINE_BYTES = 128
LL128_GROUP_BYTES = 2048
"""On the wire."""
NCCL_STEPS = 8
"""Slots of a connection's buffer (NCCL src/include/device.h, NCCL_STEPS)."""
BUFFER_BYTES = {Protocol.LL: 524_288, Protocol.LL128: 4_915_200, Protocol.SIMPLE: 4_194_304}
"""Of a connection, by NCCL's default."""
SLOT_BYTES = {protocol: size // NCCL_STEPS for protocol, size in BUFFER_BYTES.items()}
"""Distance of two steps in such a buffer."""
GRAIN_BYTES = {
    Protocol.LL: LL_LINE_DATA_BYTES,
    Protocol.LL128: LL128_GROUP_DATA_BYTES,
    Protocol.SIMPLE: 1,
}
"""Totals that differ by less may have the same sizes on the wire."""


SPLIT_BYTES = LL128_LINE_BYTES
"""Queue pairs that split a message have whole multiples of so many bytes."""


class NcclEra(_Word):
    """Eras of the partition rule, named by the NCCL releases that follow it."""

    V2_19 = "<=2.19"
    V2_20 = "2.20-2.21"
    V2_22 = "2.22"
    V2_23 = "2.23-2.25"
    V2_26 = "2.26-2.28"
    V2_29 = ">=2.29"


def era_of(version: str) -> NcclEra:
    """The era of an NCCL release, "2.21" or "2.21.5". Raises ValueError for what is none."""
    parts = version.split(".")
    if not (2 <= len(parts) <= 3 and all(part.isdigit() for part in parts) and parts[0] == "2"):
        raise ValueError(f"{version!r} is no release of NCCL 2")
    eras = ((20, NcclEra.V2_19), (22, NcclEra.V2_20), (23, NcclEra.V2_22), (26, NcclEra.V2_23))
    minor = int(parts[1])
    later = NcclEra.V2_26 if minor < 29 else NcclEra.V2_29
    return next((era for before, era in eras if minor < before), later)


def has_linear_ll128(version: str) -> bool:
    """LL128's lines hold data one behind the other in this NCCL release. Raises ValueError for
    what is none."""
    return era_of(version) is NcclEra.V2_19 and int(version.split(".")[1]) < 10


WriterRanks = int | tuple[int, ...]
"""Ring index of who writes over an edge; several: [channel]."""


class HasWriters:
    """Of an edge: who writes over it."""

    __slots__ = ()
    sender: int
    senders: tuple[int, ...]

    @property
    def writers(self) -> WriterRanks:
        """As schedules want it."""
        return self.senders or self.sender

    def sender_of(self, channel: int) -> int:
        """Ring index of who writes on it."""
        return self.senders[channel] if self.senders else self.sender


class CollectiveKind(_Word):
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER_V = "all_gather_v"
    """Broadcasts of all ranks, grouped: NCCL from 2.29 on makes one gather of them (src/enqueue.cc,
    collTaskAppend; NCCL_ALLGATHERV_ENABLE)."""

    @property
    def in_blocks(self) -> bool:
        """Each rank has a block of the result, or of what is reduced."""
        return self.is_gather or self is CollectiveKind.REDUCE_SCATTER

    @property
    def is_gather(self) -> bool:
        """Each rank's block comes to all."""
        return self in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_GATHER_V)

    @property
    def in_single_steps(self) -> bool:
        """A chunk is one step of the connection, and one message, in every protocol; else Simple
        has chunks of four steps, in two slices (src/include/collectives.h, *_CHUNKSTEPS and
        *_SLICESTEPS; src/scheduler/allgatherv_sched.cc)."""
        return self in (CollectiveKind.BROADCAST, CollectiveKind.ALL_GATHER_V)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What the environment of the trainer may change; defaults are NCCL's."""

    threads: int | None = None
    """Threads per block before halving: NCCL_NTHREADS, NCCL_LL128_NTHREADS; None: default."""
    threshold: int | None = None
    """Bytes per thread that earn a channel: NCCL_THREAD_THRESHOLDS; None: default."""
    buffer_bytes: int | None = None
    """NCCL_BUFFSIZE, NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE; None: default."""


DEFAULT_TUNING = Tuning()


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def piece_bytes(wire_bytes: int, count: int) -> int:
    """What each of `count` queue pairs carries of a message they split; the last ones have less, or
    nothing. NCCL src/transport/net_ib.cc, ncclIbMultiSend."""
    return round_up(-(-wire_bytes // count), SPLIT_BYTES)


def pieces(wire_bytes: int, count: int) -> Iterator[tuple[int, int]]:
    """[start, stop) of what each of `count` queue pairs carries of a message they split."""
    size = piece_bytes(wire_bytes, count)
    for n in range(count):
        start = min(n * size, wire_bytes)
        yield start, min(start + size, wire_bytes)


def piece_sizes(wire_bytes: int, count: int) -> list[int]:
    """Bytes of each of these."""
    return [stop - start for start, stop in pieces(wire_bytes, count)]


_Size = TypeVar("_Size", int, "NDArray[np.int64]")


def wire_bytes(protocol: Protocol, data_bytes: _Size) -> _Size:
    """Bytes a message of `data_bytes` occupies, or each of many: LL 16 per 8, LL128 2048 per
    1920."""
    if protocol is Protocol.LL:
        lines = (data_bytes + LL_LINE_DATA_BYTES - 1) // LL_LINE_DATA_BYTES
        return lines * LL_LINE_BYTES
    if protocol is Protocol.LL128:
        groups = (data_bytes + LL128_GROUP_DATA_BYTES - 1) // LL128_GROUP_DATA_BYTES
        return groups * LL128_GROUP_BYTES
    return data_bytes


def data_bytes_of(protocol: Protocol, wire_bytes: int) -> int:
    """The most data a message of `wire_bytes` can hold; LL holds up to 7 less, LL128 1919."""
    if protocol is Protocol.LL:
        return wire_bytes // LL_LINE_BYTES * LL_LINE_DATA_BYTES
    return (
        wire_bytes // LL128_GROUP_BYTES * LL128_GROUP_DATA_BYTES
        if protocol is Protocol.LL128
        else wire_bytes
    )
