"""What one connection between two ranks carries for a collective, by ring or by tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from flowcheck.wire.collectives.chunk_partition import Launch
from flowcheck.wire.collectives.double_binary_tree import PerTree, tree_chunks, tree_direction
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, WriterRanks, wire_bytes
from flowcheck.wire.collectives.ring_schedule import RingSetting, Schedule, Send, collective


def connection_sends(
    kind: CollectiveKind,
    work_bytes: int,
    *,
    sender: WriterRanks,
    receiver: int | None = None,
    trees: PerTree = (True, True),
    tree: bool = False,
    found: int = 0,
    element_bytes: int = 4,
    extra_sends: int = 0,
    root: int = 0,
    **ring: Unpack[RingSetting],
) -> Schedule:
    """[channel][send] of any collective. receiver: ring index of who reads, where only trees pass;
    trees: which of the two do; tree: an all-reduce goes by one; found: channels of NCCL's search,
    which tell the tree of each."""
    if tree:
        edge = _Edge(sender, receiver, trees)
        return _by_tree(kind, work_bytes, edge, found, element_bytes, ring)
    if receiver is not None:
        return ((),) * ring["channels"]
    return collective(
        kind,
        work_bytes,
        sender=sender,
        element_bytes=element_bytes,
        extra_sends=extra_sends,
        root=root,
        **ring,
    )


@dataclass(frozen=True, slots=True)
class _Edge:
    writers: WriterRanks
    receiver: int | None
    trees: PerTree


@dataclass(frozen=True, slots=True)
class _Grown:
    ranks: int
    gpus: int
    found: int


def _by_tree(
    kind: CollectiveKind,
    work_bytes: int,
    edge: _Edge,
    found: int,
    element_bytes: int,
    ring: RingSetting,
) -> Schedule:
    launch = Launch(
        kind=kind, work_bytes=work_bytes, element_bytes=element_bytes, tree=True, **ring
    )
    own = _Grown(launch.ranks, launch.gpus, found)
    channels: list[tuple[Send, ...]] = []
    for channel, spans in enumerate(tree_chunks(launch)):
        final = tree_direction(edge, channel, own)
        sends = (
            Send(
                channel=channel,
                send=number,
                fifo_step=number,
                loop=number,
                chunk=0,
                start_byte=start,
                data_bytes=size,
                wire_bytes=wire_bytes(launch.protocol, size),
                final=bool(final),
            )
            for number, (start, size) in enumerate(spans)
        )
        channels.append(() if final is None else tuple(sends))
    return tuple(channels)
