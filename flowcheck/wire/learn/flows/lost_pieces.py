"""Pieces of split sends that were lost, by those of the same send on the other queue pairs.

Each piece's immediate states how large the whole send is, and so how large every piece of it was
and how many packets it took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flowcheck.wire.collectives.nccl_wire_format import immediate_sizes
from flowcheck.wire.learn.flows.streams import PSN_OF_START, SendSeen
from flowcheck.wire.traffic.observed_messages import ObservedMessage

ALIGN_BYTES = 128
"""Every piece but the last one is a multiple of it."""

Row = Sequence[SendSeen]
"""The sends of one queue pair, ascending PSN."""


def each_bytes(size: int, count: int) -> int:
    """Bytes of every piece but the last ones."""
    return -(-size // count // ALIGN_BYTES) * ALIGN_BYTES


def piece_bytes(size: int, count: int, place: int) -> int:
    each = each_bytes(size, count)
    return max(0, min(each, size - place * each))


def filled(rows: Sequence[Row], pmtu_bytes: int) -> list[list[SendSeen]] | None:
    """Rows, in the order of pieces, with a stand-in for each piece that was lost; None where the
    PSNs do not bear out what that rests on."""
    known = [[send for send in row if not send.message.length_inferred] for row in rows]
    headless = [
        {send.first_psn: send.message for send in row if send.message.length_inferred}
        for row in rows
    ]
    if not pmtu_bytes and any(send.message.packets > 1 for row in known for send in row):
        return None
    found: list[list[SendSeen]] = [[] for _ in rows]
    psns = [PSN_OF_START] * len(rows)
    while any(known):
        seen = [
            row.pop(0) if row and row[0].first_psn == psn else None
            for row, psn in zip(known, psns, strict=True)
        ]
        size = _stated(seen)
        if size is None:
            return None
        closing = any(send is not None and _closed_apart(send) for send in seen)
        for place, send in enumerate(seen):
            of = piece_bytes(size, len(rows), place)
            packets = max(1, -(-of // pmtu_bytes)) if pmtu_bytes else 1
            if send is not None and send.message.packets != packets:
                return None
            stand_in = _lost(seen, place, size, psns[place], packets) if send is None else send
            found[place].append(_with_rest(stand_in, headless[place].get(psns[place])))
            psns[place] += packets + closing
            if known[place] and known[place][0].first_psn < psns[place]:
                return None
    return found


def _stated(pieces: Sequence[SendSeen | None]) -> int | None:
    """Of what size the send is that these are pieces of."""
    words = {piece.immediate for piece in pieces if piece is not None} - {None}
    if len(words) != 1:
        whole = [piece.wire_bytes for piece in pieces if piece is not None]
        return sum(whole) if not words and len(whole) == len(pieces) else None
    fits = [
        size
        for size in dict.fromkeys(immediate_sizes(words.pop() or 0))
        if all(
            piece is None or piece.wire_bytes == piece_bytes(size, len(pieces), place)
            for place, piece in enumerate(pieces)
        )
    ]
    return fits[0] if len(fits) == 1 else None


def _closed_apart(send: SendSeen) -> bool:
    """An empty write behind it states its size (NCCL_IB_ADAPTIVE_ROUTING)."""
    return send.stop_psn > send.message.first_psn + send.message.packets


def _lost(
    seen: Sequence[SendSeen | None], place: int, size: int, psn: int, packets: int
) -> SendSeen:
    """The piece at `place` of a send of `size` bytes, by what was seen of the others."""
    there = [(i, piece) for i, piece in enumerate(seen) if piece is not None]
    beside, like = max(there, key=lambda pair: bool(pair[1].message.va and pair[1].wire_bytes))
    own = piece_bytes(size, len(seen), place)
    address = like.message.va if like.wire_bytes else None
    message = replace(
        like.message,
        first_psn=psn,
        packets=packets,
        va=address and address + (place - beside) * each_bytes(size, len(seen)),
        wire_bytes=own,
        payload=np.zeros(own, np.uint8),
        missing=((0, own),) if own else (),
        conflicts=(),
    )
    return replace(
        like,
        message=message,
        wire_bytes=own,
        first_psn=psn,
        stop_psn=psn + packets,
        flag=None,
        protocol=None,
    )


def _with_rest(piece: SendSeen, rest: ObservedMessage | None) -> SendSeen:
    """With what was seen behind its lost start, where that is of a message as large."""
    if rest is None or (rest.packets, rest.wire_bytes) != (piece.message.packets, piece.wire_bytes):
        return piece
    message = replace(
        piece.message, payload=rest.payload, missing=rest.missing, conflicts=rest.conflicts
    )
    return replace(piece, message=message)
