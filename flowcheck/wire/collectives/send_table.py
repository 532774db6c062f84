"""The messages of one connection for one collective, as columns: a collective of a large model has
ten thousands of them, which are compared, counted and placed all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import overload

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One message of one connection."""

    channel: int
    send: int
    """Ordinal within the collective on this edge and channel."""
    fifo_step: int
    """Connection steps since the collective began; LL flag = absolute step + 1."""
    loop: int
    chunk: int
    """Chunk of the loop; in a gather or scatter the ring index whose block it is."""
    start_byte: int
    data_bytes: int
    wire_bytes: int
    final: bool
    """Holds the result, not a partial sum."""


SIZE_COLUMN = 8
"""Bytes of a size in a column."""


class SendTable(Sequence[Send]):
    """Sends in wire order. Columns are [send]; single `Send`s are made once somebody asks."""

    __slots__ = (
        "_key",
        "_made",
        "_sizes",
        "channel",
        "chunks",
        "data_bytes",
        "fifo_steps",
        "final",
        "parts",
        "start_bytes",
        "wire_bytes",
    )

    def __init__(
        self,
        channel: int,
        fifo_steps: int,
        *,
        chunks: NDArray[np.int64],
        parts: int = 1,
        start_bytes: NDArray[np.int64],
        data_bytes: NDArray[np.int64],
        wire_bytes: NDArray[np.int64],
        final: NDArray[np.bool_],
    ) -> None:
        """fifo_steps: of each send; chunks: [hop] of a loop; parts: sends of each hop."""
        self.channel, self.fifo_steps = channel, fifo_steps
        self.chunks, self.parts = chunks, parts
        self.start_bytes, self.data_bytes, self.wire_bytes = start_bytes, data_bytes, wire_bytes
        self.final = final
        self._made: tuple[Send, ...] | None = None
        self._key: bytes | None = None
        self._sizes: bytes | None = None

    @property
    def sends(self) -> tuple[Send, ...]:
        """Each by itself."""
        if self._made is None and not len(self):
            self._made = ()
        elif self._made is None:
            numbers = np.arange(len(self)) // self.parts
            columns = (
                numbers // len(self.chunks),
                self.chunks[numbers % len(self.chunks)],
                self.start_bytes,
                self.data_bytes,
                self.wire_bytes,
                self.final,
            )
            self._made = tuple(
                Send(
                    channel=self.channel,
                    send=number,
                    fifo_step=number * self.fifo_steps,
                    loop=loop,
                    chunk=chunk,
                    start_byte=start,
                    data_bytes=size,
                    wire_bytes=wire,
                    final=final,
                )
                for number, (loop, chunk, start, size, wire, final) in enumerate(
                    zip(*(column.tolist() for column in columns), strict=True)
                )
            )
        return self._made

    @property
    def key(self) -> bytes:
        """Equal for sends of equal sizes in equal places."""
        if self._key is None:
            held = self.data_bytes > 0
            # Of a send that holds nothing eras may differ, and no byte tells.
            starts, final = np.where(held, self.start_bytes, -1), self.final & held
            columns = (self.wire_bytes, self.data_bytes, starts, final)
            self._key = b"".join(column.tobytes() for column in columns)
        return self._key

    @property
    def sizes(self) -> bytes:
        """`wire_bytes` as bytes."""
        if self._sizes is None:
            self._sizes = self.wire_bytes.tobytes()
        return self._sizes

    def __len__(self) -> int:
        return len(self.wire_bytes)

    @overload
    def __getitem__(self, at: int) -> Send: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Send, ...]: ...
    def __getitem__(self, at: int | slice) -> Send | tuple[Send, ...]:
        return self.sends[at]

    def __iter__(self) -> Iterator[Send]:
        return iter(self.sends)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SendTable):
            return self is other or (self.channel, self.key) == (other.channel, other.key)
        return isinstance(other, Sequence) and self.sends == tuple(other)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"SendTable(channel={self.channel}, sends={len(self)})"


@lru_cache(maxsize=128)
def no_sends(channel: int) -> SendTable:
    """Of a channel without work."""
    return SendTable(
        channel,
        1,
        chunks=_NONE,
        start_bytes=_NONE,
        data_bytes=_NONE,
        wire_bytes=_NONE,
        final=_NONE.astype(np.bool_),
    )


_NONE = np.zeros(0, np.int64)


Schedule = tuple[SendTable, ...]
"""[channel] what one edge of a communicator carries of a collective."""


def same_sizes(one: Sequence[Schedule], other: Sequence[Schedule]) -> bool:
    """Two collectives, [edge], are alike on the wire."""
    return all(
        len(a) == len(b) and all(s.sizes == t.sizes for s, t in zip(a, b, strict=True))
        for a, b in zip(one, other, strict=True)
    )
