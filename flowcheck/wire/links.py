"""What a connection between two ranks carries for a collective, by ring or by tree."""

from __future__ import annotations

from typing import Unpack

from flowcheck.wire.partition import Launch
from flowcheck.wire.schedule import RingSetting, Schedule, Send, collective, wire_bytes
from flowcheck.wire.terms import Kind, Senders
from flowcheck.wire.trees import down, tree_chunks, tree_of


def over_link(
    kind: Kind,
    work_bytes: int,
    *,
    sender: Senders,
    receiver: int | None = None,
    tree: bool = False,
    found: int = 0,
    element_bytes: int = 4,
    extra_sends: int = 0,
    root: int = 0,
    **ring: Unpack[RingSetting],
) -> Schedule:
    """[channel][send] of any collective. receiver: ring index of who reads, where that is not the
    next rank, so that only trees pass there; tree: an all-reduce goes by one; found: channels
    of NCCL's search, which tell the tree of each."""
    if tree and isinstance(sender, int):
        reader = (sender + 1) % ring["ranks"] if receiver is None else receiver
        return _by_tree(kind, work_bytes, (sender, reader), found, element_bytes, ring)
    if tree or receiver is not None:
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


def _by_tree(
    kind: Kind,
    work_bytes: int,
    ends: tuple[int, int],
    found: int,
    element_bytes: int,
    ring: RingSetting,
) -> Schedule:
    launch = Launch(
        kind=kind, work_bytes=work_bytes, element_bytes=element_bytes, tree=True, **ring
    )
    channels: list[tuple[Send, ...]] = []
    for channel, spans in enumerate(tree_chunks(launch)):
        final = down(*ends, tree_of(channel, launch.ranks, found))
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
