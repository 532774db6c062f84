"""Sends of which every queue pair of a connection carries a piece (NCCL_IB_SPLIT_DATA_ON_QPS).

Of S bytes over q queue pairs each takes S/q, rounded up to 128, the last ones less or nothing, and
each piece's immediate states S (NCCL src/transport/net_ib, ncclIbMultiSend). So the others tell how
large a piece was that was lost, and how many packets it took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from flowcheck.wire.collectives.nccl_wire_format import immediate_sizes
from flowcheck.wire.learn.flows.line_flags import line_flag
from flowcheck.wire.learn.flows.lost_pieces import Row, each_bytes, filled
from flowcheck.wire.learn.flows.streams import PSN_OF_START, SendSeen
from flowcheck.wire.traffic.observed_messages import ObservedMessage

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
    if len(starts) > 1 or headless or any(gaps(row) for row in rows):
        order = by_address(rows)
        whole = filled([rows[i] for i in order], pmtu_bytes) if order else None
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
    return bool(pairs) and same and all(a == b for a, b in flags) and _oneeach_bytes(offsets)


def _oneeach_bytes(offsets: set[tuple[int | None, int]]) -> bool:
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


def gaps(row: Row) -> bool:
    return any(two.first_psn != one.stop_psn for one, two in pairwise(row))


def by_address(rows: Sequence[Row]) -> list[int]:
    """Places of the rows in the order of their pieces; [] while no send told of all. Receives use
    the same few addresses over and over: pieces of two alike tell as much as those of one."""
    for first in rows[0]:
        for size in immediate_sizes(first.immediate or 0):
            each = each_bytes(size, len(rows))
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
    parts = sorted((piece.message for piece in pieces if piece.wire_bytes), key=lambda m: m.va or 0)
    if not parts:
        return pieces[0]
    starts = np.cumsum([0, *(part.wire_bytes for part in parts)]).tolist()
    message: ObservedMessage = replace(
        parts[0],
        wire_bytes=starts[-1],
        payload=np.concatenate([part.payload for part in parts]),
        missing=_moved(starts, [part.missing for part in parts]),
        conflicts=_moved(starts, [part.conflicts for part in parts]),
        first_ns=min(part.first_ns for part in parts),
    )
    buffers = {piece.granted for piece in pieces if piece.wire_bytes}
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


def _moved(
    starts: Sequence[int], ranges: Sequence[Sequence[tuple[int, int]]]
) -> tuple[tuple[int, int], ...]:
    return tuple((a + at, b + at) for at, own in zip(starts, ranges, strict=False) for a, b in own)
