"""Sends of which every queue pair of a connection carries a piece (NCCL_IB_SPLIT_DATA_ON_QPS).

Of S bytes over q queue pairs each takes S/q, rounded up to 128, the last ones less or nothing, and
each piece's immediate states S (NCCL src/transport/net_ib, ncclIbMultiSend). So those of the same
send tell how large a piece was that was lost, and how many packets it took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flowcheck.wire.collectives.nccl_parameters import piece_bytes, piece_sizes
from flowcheck.wire.collectives.nccl_wire_format import immediate_sizes
from flowcheck.wire.learn.flows.line_flags import line_flag
from flowcheck.wire.learn.flows.numbering import has_gaps
from flowcheck.wire.learn.flows.streams import PSN_OF_START, SendSeen, one_behind_the_other
from flowcheck.wire.traffic.observed_messages import ObservedMessage

Row = Sequence[SendSeen]
"""The sends of one queue pair, ascending PSN."""

MOST_AHEAD = 3
"""Sends by which one queue pair is before another at most, where a capture begins."""


def is_split(rows: Sequence[Row]) -> bool:
    """Each send of one is a piece: what their immediates state is not its own size, but what they
    come to together."""
    for pieces in zip(*rows, strict=False):
        words = {piece.immediate for piece in pieces}
        word = words.pop()
        if words or not word:
            continue
        sizes = immediate_sizes(word)
        parts = [piece.wire_bytes for piece in pieces]
        if sum(parts) in sizes and any(part not in sizes for part in parts):
            return True
    return _all_empty(rows)


def _all_empty(rows: Sequence[Row]) -> bool:
    """Nothing was sent but empty sends, each on all to the same place, where by turns each would
    have the next place."""
    empty = all(send.immediate == 0 and not send.wire_bytes for row in rows for send in row)
    at = [{send.message.va for send in pieces} for pieces in zip(*rows, strict=False)]
    return empty and all(len(of) == 1 and None not in of for of in at)


def put_together(rows: Sequence[Row], pmtu_bytes: int) -> list[SendSeen] | None:
    """Whole sends in order; None where loss or a start in the middle leaves open which pieces
    belong together. pmtu_bytes: 0 where no packet told it."""
    starts = {row[0].first_psn == PSN_OF_START for row in rows}
    if starts == {False} and len({len(row) for row in rows}) > 1:
        return None
    headless = starts == {True} and any(
        send.message.length_inferred for row in rows for send in row
    )
    if len(starts) > 1 or headless or any(map(has_gaps, rows)):
        order = by_address(rows)
        whole = _filled([rows[i] for i in order], pmtu_bytes) if order else None
        if whole is None:
            return None
        rows = whole
    sends = list(zip(*rows, strict=False))
    if any(len({p.immediate for p in pieces} - {None}) > 1 for pieces in sends):
        return None
    return [_whole(pieces) for pieces in sends]


def side_by_side(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows from the first send on of which all have a piece, where a capture begins amid one:
    pieces of one send state one size and lie where its pieces lie. As they are where that is not
    told."""
    skips = [0]
    for row in rows[1:]:
        ways = [n for n in range(-MOST_AHEAD, MOST_AHEAD + 1) if _beside(rows[0], row, n)]
        if not ways:
            return rows
        skips.append(min(ways, key=lambda n: _time_apart(rows[0], row, n)))
    most = max(skips)
    # Send n of the first row is send n + skip of another one.
    begin = max(0, -min(skips))
    cut = [row[begin + skip :] for row, skip in zip(rows, skips, strict=True)]
    least = min(map(len, cut))
    return [row[:least] for row in cut] if least and most <= MOST_AHEAD else rows


def _beside(one: Row, two: Row, ahead: int) -> bool:
    """Every piece of `two` may be of the send that `one` has a piece of, so many places before."""
    pairs = [(a, two[n + ahead]) for n, a in enumerate(one) if 0 <= n + ahead < len(two)]
    offsets = {
        (a.immediate, (b.message.va or 0) - (a.message.va or 0))
        for a, b in pairs
        if a.wire_bytes and b.wire_bytes and a.message.va and b.message.va
    }
    flags = [(a.flag, b.flag) for a, b in pairs if a.flag is not None and b.flag is not None]
    same = all(len({a.immediate, b.immediate} - {None}) < 2 for a, b in pairs)
    return bool(pairs) and same and all(a == b for a, b in flags) and _one_offset_each(offsets)


def _one_offset_each(offsets: set[tuple[int | None, int]]) -> bool:
    """Of sends of one size the pieces of one queue pair lie as far behind those of another."""
    return len({size for size, _ in offsets}) == len(offsets)


def _time_apart(one: Row, two: Row, ahead: int) -> int:
    """Typical time between what would be pieces of one send, in nanoseconds."""
    apart = sorted(
        abs(a.message.first_ns - two[n + ahead].message.first_ns)
        for n, a in enumerate(one)
        if 0 <= n + ahead < len(two)
    )
    return apart[len(apart) // 2]


def by_address(rows: Sequence[Row]) -> list[int]:
    """Places of the rows in the order of their pieces; [] while no send told of all. Receives use
    the same few addresses over and over: pieces of two alike tell as much as those of one."""
    for first in rows[0]:
        for size in immediate_sizes(first.immediate or 0):
            each = piece_bytes(size, len(rows))
            if not (0 < first.wire_bytes <= each and first.message.va):
                continue
            offsets = [_offsets(row, first, size, each) for row in rows[1:]]
            told = [0, *(of.pop() for of in offsets if len(of) == 1)]
            order = sorted(range(len(told)), key=lambda i: told[i])
            if len(told) == len(rows) and [told[i] - min(told) for i in order] == [
                each * i for i in range(len(rows))
            ]:
                return order
    return []


def _offsets(row: Row, first: SendSeen, size: int, each: int) -> set[int]:
    """How far behind the piece `first` the pieces of `row` lie, of sends as large."""
    at = first.message.va or 0
    return {
        send.message.va - at
        for send in row
        if send.immediate == first.immediate
        and send.message.va
        and send.wire_bytes
        and abs(send.message.va - at) < size
        and (send.message.va - at) % each == 0
    }


def _whole(pieces: Sequence[SendSeen]) -> SendSeen:
    """One send of its pieces, by address; an empty piece has none worth looking at."""
    held = [piece for piece in pieces if piece.wire_bytes]
    if not held:
        return pieces[0]
    message = one_behind_the_other(
        sorted((piece.message for piece in held), key=lambda m: m.va or 0)
    )
    buffers = {piece.granted for piece in held}
    granted = next(iter(buffers)) if len(buffers) == 1 else None
    flag = line_flag(message, granted)
    return replace(
        pieces[0],
        message=message,
        wire_bytes=message.wire_bytes,
        closed=all(piece.closed for piece in pieces),
        flag=flag[1] if flag else None,
        granted=granted,
        protocol=granted or (flag[0] if flag else None),
    )


def _filled(rows: Sequence[Row], pmtu_bytes: int) -> list[list[SendSeen]] | None:
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
        for place, (send, own) in enumerate(zip(seen, piece_sizes(size, len(rows)), strict=True)):
            packets = max(1, -(-own // pmtu_bytes)) if pmtu_bytes else 1
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
            piece is None or piece.wire_bytes == own
            for piece, own in zip(pieces, piece_sizes(size, len(pieces)), strict=True)
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
    own = piece_sizes(size, len(seen))[place]
    address = like.message.va if like.wire_bytes else None
    message = replace(
        like.message,
        first_psn=psn,
        packets=packets,
        va=address and address + (place - beside) * piece_bytes(size, len(seen)),
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
        piece.message,
        payload=rest.payload,
        missing=rest.missing,
        conflicts=rest.conflicts,
        others=rest.others,
    )
    return replace(piece, message=message)
