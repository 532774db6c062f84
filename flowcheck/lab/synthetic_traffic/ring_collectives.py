"""NCCL's ring collectives executed on real bytes: every loop of every rank, message by message. It
shares no code with the decoder's schedule, so that tests find an error in either. Sources: NCCL
src/device/all_reduce.h runRing, all_gather.h runRing, broadcast.h runRing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from flowcheck.lab.synthetic_traffic.nccl_chunks import CHUNKS, broadcast_pieces


@dataclass(frozen=True, slots=True)
class RingSend:
    """One send of one rank; `data` is its payload before it is packed into the protocol's lines."""

    channel: int
    sender: int
    """Sending rank; the receiver is the next rank of the ring."""
    data: bytes


Add = Callable[[bytes, bytes], bytes]


def adder(dtype: torch.dtype) -> Add:
    """A function that adds two byte strings of this dtype, with the rounding of each hop."""

    def add(received: bytes, own: bytes) -> bytes:
        if not own:
            return b""
        left = torch.frombuffer(bytearray(received), dtype=dtype)
        right = torch.frombuffer(bytearray(own), dtype=dtype)
        return (left + right).view(torch.uint8).numpy().tobytes()

    return add


def all_reduce(
    tensors: list[bytes], *, version: str, channels: int, add: Add, extra_send: bool = False
) -> tuple[bytes, Iterator[RingSend]]:
    """(reduced tensor, all sends in the order in which ranks make them).

    tensors: [rank] bytes.
    version: partition rule, a key of CHUNKS (nccl_chunks.py).
    extra_send: each rank forwards one more result per loop.
    """
    ranks, total = len(tensors), len(tensors[0])
    result = bytearray(total)
    sends: list[RingSend] = []
    for channel, loops in enumerate(CHUNKS[version](total, ranks, channels).loops):
        for ranges in loops:
            sends += _all_reduce_loop(tensors, result, ranges, channel, add, extra_send)
    return bytes(result), iter(sends)


def _all_reduce_loop(
    tensors: list[bytes],
    result: bytearray,
    ranges: list[tuple[int, int]],
    channel: int,
    add: Add,
    extra_send: bool,
) -> list[RingSend]:
    """One loop of runRing on every rank: send, then receive-reduce-send, then forward."""
    ranks = len(tensors)
    own = [[tensors[rank][begin:end] for begin, end in ranges] for rank in range(ranks)]
    held = [own[rank][(rank - 1) % ranks] for rank in range(ranks)]
    sends = []
    for turn in range(2 * ranks - 2 + extra_send):
        sends += [RingSend(channel, rank, held[rank]) for rank in range(ranks)]
        arriving = [held[(rank - 1) % ranks] for rank in range(ranks)]
        for rank in range(ranks):
            chunk = (rank - turn - 2) % ranks
            if turn <= ranks - 2:
                arriving[rank] = add(arriving[rank], own[rank][chunk])
            if turn >= ranks - 2:
                begin, end = ranges[chunk]
                result[begin:end] = arriving[rank]
        held = arriving
    return sends


def all_gather(blocks: list[bytes]) -> Iterator[RingSend]:
    """Sends of a small all-gather on channel 0: every rank sends its block and forwards those it
    receives."""
    ranks = len(blocks)
    for turn in range(ranks - 1):
        for rank in range(ranks):
            yield RingSend(0, rank, blocks[(rank - turn) % ranks])


def broadcast(data: bytes, ranks: int, channels: int, version: str) -> Iterator[RingSend]:
    """Sends of a broadcast from rank 0; the last rank sends nothing. One message per FIFO step."""
    for channel, pieces in enumerate(broadcast_pieces(len(data), ranks, channels, version)):
        for begin, end in pieces:
            for rank in range(ranks - 1):
                yield RingSend(channel, rank, data[begin:end])
