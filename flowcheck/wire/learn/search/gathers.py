"""Sharded training (FSDP, ZeRO): parameters gathered over and over, gradients reduce-scattered.

A reduce-scatter has the sizes of an all-gather; of two ranks, two of either have those of an
all-reduce. Content tells: parameters are gathered for the forward and again for the backward,
unchanged; and of more than two ranks, what is gathered is forwarded as it came.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    CollectiveKind,
    Protocol,
    data_bytes_of,
    wire_bytes,
)
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.echo import varied
from flowcheck.wire.learn.cuts.place import Canvas, paint, unpacked
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import SendSeen, Stream

LOOKED_AT_BYTES = 1920
"""Of a send's data: whole groups of LL128, and more than chance makes equal."""
ENOUGH_AGAIN = 2
ENOUGH_BYTES = 32
GATHERED, SCATTERED = "gathered parameters", "gradients, each rank's sum stays with it"
GATHERS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)


def gathers_again(streams: Sequence[Stream]) -> bool:
    """Several sends of each connection that carries large ones hold what an earlier one held."""
    counts = [
        sum(n - 1 for n in Counter(filter(None, map(_mark, stream.sends.values()))).values())
        for stream in streams
    ]
    return len(streams) > 1 and sum(counts) >= ENOUGH_AGAIN * len(streams)


def _mark(send: SendSeen) -> bytes:
    """Of what a send holds; empty where too little of it was seen, or is different."""
    protocol = send.protocol or Protocol.SIMPLE
    if not send.wire_bytes or send.message.missing or send.message.conflicts:
        return b""
    size = min(LOOKED_AT_BYTES, data_bytes_of(protocol, send.wire_bytes))
    wide = min(send.wire_bytes, wire_bytes(protocol, size))
    whole = replace(send.message, wire_bytes=wide, payload=send.message.payload[:wide])
    data, seen = unpacked(replace(send, message=whole, wire_bytes=wide), protocol, size)
    words = data[: size // 4 * 4].view("<u4")
    if not seen.all() or not varied(words):
        return b""
    return hashlib.sha256(data.tobytes()).digest() + send.wire_bytes.to_bytes(8, "little")


def kinds_told(cuts: Sequence[Cut], ring: Ring) -> tuple[Cut, ...]:
    """Gathers and reduce-scatters by what they hold, named; as they are where nothing tells."""
    gathered = {
        i: cut.as_op(replace(cut.op, kind=CollectiveKind.ALL_GATHER, meaning=GATHERED), ring)
        for i, cut in enumerate(cuts)
        if cut.op.kind in GATHERS and not cut.op.licensed
    }
    painted = {i: paint(cut, ring)[0] for i, cut in gathered.items()}
    hashes = {
        i: hashlib.sha256(canvas.result.tobytes()).digest()
        for i, canvas in painted.items()
        if canvas.whole and canvas.result.any()
    }
    often = Counter(hashes.values())
    again = {cuts[i].op.work_bytes for i, mark in hashes.items() if often[mark] > 1}
    found = list(cuts)
    for i, cut in gathered.items():
        twice = often[hashes.get(i, b"")] > 1
        once = ring.ranks == 2 and cut.op.work_bytes in again and not twice
        if once or _differ_early(cut, painted[i], ring):
            op = replace(cut.op, kind=CollectiveKind.REDUCE_SCATTER, meaning=SCATTERED)
            found[i] = cut.as_op(op, ring)
        elif twice or _forwarded(cut, ring):
            found[i] = cut
    return tuple(found)


def scattered(cuts: Sequence[Cut], ring: Ring) -> tuple[Cut, ...]:
    """Reduce-scatters that were taken for gathers: the copies of a block differ, as sums do on
    their way."""
    found = []
    for cut in cuts:
        gather = cut.op.kind is CollectiveKind.ALL_GATHER and not cut.op.licensed
        differs = gather and _differ_early(cut, paint(cut, ring)[0], ring)
        op = replace(cut.op, kind=CollectiveKind.REDUCE_SCATTER)
        found.append(cut.as_op(op, ring) if differs else cut)
    return tuple(found)


def _differ_early(cut: Cut, canvas: Canvas, ring: Ring) -> bool:
    """Copies of a block differ from its beginning on, and not only in what fills its end up."""
    size = cut.op.work_bytes
    disputed = canvas.disputed.reshape(ring.ranks, size)
    return bool(disputed[:, : max(ENOUGH_BYTES, size - GRAIN_BYTES[cut.op.protocol])].any())


def _forwarded(cut: Cut, ring: Ring) -> bool:
    """A block was mirrored as it came and as it was sent on."""
    starts = Counter(
        send.start_byte
        for stream, number, send in cut.sends(ring)
        if number in stream.sends and send.data_bytes
    )
    return any(count > 1 for count in starts.values())
