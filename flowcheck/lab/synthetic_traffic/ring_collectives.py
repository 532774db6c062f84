"""NCCL's ring collectives executed on real bytes: every rank's loop, message by message.

What is sent is what a rank holds when it sends it. Nothing here knows the decoder's schedule,
so that an error in either shows. Sources: NCCL src/device/all_reduce.h runRing, all_gather.h
runRing, broadcast.h runRing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from flowcheck.lab.synthetic_traffic.nccl_chunks import CHUNKS, broadcast_pieces


@dataclass(frozen=True, slots=True)
class RingSend:
    """One send of one rank: `data` is what it holds, before the protocol's lines."""

    channel: int
    sender: int
    """Rank; its receiver is the next of the ring."""
    data: bytes


Add = Callable[[bytes, bytes], bytes]


def adder(dtype: torch.dtype) -> Add:
    """Sum of two byte strings in the wire type, rounded as every hop rounds."""

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
    """(the reduced tensor, every send in the order ranks make them). One tensor per rank."""
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
    """Small all-gather on channel 0: every rank sends its block on, and each one it gets."""
    ranks = len(blocks)
    for turn in range(ranks - 1):
        for rank in range(ranks):
            yield RingSend(0, rank, blocks[(rank - turn) % ranks])


def broadcast(data: bytes, ranks: int, channels: int, version: str) -> Iterator[RingSend]:
    """From rank 0 down the ring; the last rank sends nothing on. One message per FIFO step."""
    for channel, pieces in enumerate(broadcast_pieces(len(data), ranks, channels, version)):
        for begin, end in pieces:
            for rank in range(ranks - 1):
                yield RingSend(channel, rank, data[begin:end])
