"""Several queue pairs of one connection: whole sends by turns, or a piece of each on every one.

NCCL_IB_QPS_PER_CONNECTION and NCCL_IB_SPLIT_DATA_ON_QPS (NCCL src/transport/net_ib,
ncclIbMultiSend): by turns since 2.20, split before. They share the receiver's buffers, so keys and
addresses tell which belong together; only the first one carries clear-to-send messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

import numpy as np

from flowcheck.wire.learn.flows.numbering import PSN_OF_START
from flowcheck.wire.learn.flows.streams import SendSeen, immediate_sizes, line_flag
from flowcheck.wire.nccl import SLOT_BYTES, SLOTS
from flowcheck.wire.seen import FlowKey, FlowSeen, MessageSeen
from flowcheck.wire.terms import Protocol

BLOCK_BYTES = 16 << 20
"""A connection's buffers of all protocols lie closer than this (src/transport/net.cc: 9.3 MiB)."""

MOST_PERMUTED = 4
"""Queue pairs of which every order is tried; of more, those that begin with another one."""

Sends = Mapping[FlowKey, Sequence[SendSeen]]
Group = tuple[FlowSeen, ...]


def groups(flows: Sequence[FlowSeen], sends: Sends, granting: Sequence[FlowSeen]) -> list[Group]:
    """Data flows by connection, the one that was used first leading; most have one flow each.

    granting: the clear-to-send flows.
    """
    found: list[list[FlowSeen]] = []
    for flow in sorted(flows, key=lambda f: _began(sends[f.key][0])):
        homes = (g for g in found if all(_share(flow, other, sends, granting) for other in g))
        home = next(homes, None)
        if home is None or _own_grants((*home, flow), granting) > 1:
            found.append([flow])
        else:
            home.append(flow)
    return [tuple(group) for group in found]


def _began(send: SendSeen) -> tuple[int, int]:
    """Frames of one burst may have one time stamp."""
    return send.message.first_ns, send.message.order


def _share(one: FlowSeen, two: FlowSeen, sends: Sends, granting: Sequence[FlowSeen]) -> bool:
    """They write to the same buffers, by the same keys, at the same time, or one after the other by
    the clear-to-send messages of one of them alone."""
    if (one.key.source, one.key.destination) != (two.key.source, two.key.destination):
        return False
    apart = one.last_ns < two.first_ns or two.last_ns < one.first_ns
    if apart and _own_grants((one, two), granting) != 1:
        return False  # the buffers of a job that was there before
    mine, others = _buffers(sends[one.key]), _buffers(sends[two.key])
    shared = mine.keys() & others.keys()
    spans = [(*mine[key], *others[key]) for key in shared]
    return bool(shared) and all(max(span) - min(span) < BLOCK_BYTES for span in spans)


def _buffers(sends: Sequence[SendSeen]) -> dict[int, tuple[int, int]]:
    """{key: (first address, last address)} of what was written."""
    found: dict[int, tuple[int, int]] = {}
    for message in (send.message for send in sends):
        if message.va and message.rkey is not None:
            low, high = found.get(message.rkey, (message.va, message.va))
            found[message.rkey] = (min(low, message.va), max(high, message.va))
    return found


def _own_grants(members: Sequence[FlowSeen], granting: Sequence[FlowSeen]) -> int:
    """How many of them have a clear-to-send flow that runs the other way."""
    return sum(
        any(
            (grant.key.destination, grant.key.source) == (flow.key.source, flow.key.destination)
            and grant.udp_source_port == flow.udp_source_port
            for grant in granting
        )
        for flow in members
    )


@dataclass(frozen=True, slots=True)
class Connection:
    """Several queue pairs as one."""

    sends: tuple[SendSeen, ...]
    """In order, PSNs made up."""
    turns: tuple[FlowKey, ...]
    """Whose turn comes first, or whose piece; () where nothing told yet."""
    split: bool


def joined(group: Group, sends: Sends, granted: Mapping[int, int]) -> Connection | None:
    """None where loss or a start in the middle leaves the order of sends open. granted: {number of
    a send: address}."""
    rows = [list(sends[flow.key]) for flow in group]
    keys = {id(row): flow.key for row, flow in zip(rows, group, strict=True)}
    if any(_gaps(row) for row in rows):
        return None
    from_start = all(row[0].first_psn == PSN_OF_START for row in rows)
    split = _split(rows)
    if split:
        if not from_start and len({len(row) for row in rows}) > 1:
            return None
        found = [_whole(pieces) for pieces in zip(*rows, strict=False)]
        turns = _of_pieces([flow.key for flow in group], rows)
    else:
        way = _by_turns(rows, granted, from_start=from_start)
        if way is None:
            return None
        found = _dealt(way)
        turns = tuple(keys[id(row)] for row in way)
    first = PSN_OF_START if from_start else PSN_OF_START + 1
    made = (
        replace(send, first_psn=first + n, stop_psn=first + n + 1) for n, send in enumerate(found)
    )
    return Connection(tuple(made), turns, split)


def _of_pieces(keys: Sequence[FlowKey], rows: Sequence[Sequence[SendSeen]]) -> tuple[FlowKey, ...]:
    """Queue pairs in the order of their pieces' addresses; () while no send told of all."""
    for pieces in zip(*rows, strict=False):
        told = [(piece.message.va, key) for piece, key in zip(pieces, keys, strict=True)]
        if all(piece.wire_bytes and piece.message.va for piece in pieces):
            return tuple(key for _, key in sorted(told, key=lambda pair: pair[0] or 0))
    return ()


def _dealt(way: Sequence[Sequence[SendSeen]]) -> list[SendSeen]:
    """One of each row after another."""
    return [way[n % len(way)][n // len(way)] for n in range(sum(map(len, way)))]


def _gaps(row: Sequence[SendSeen]) -> bool:
    return any(b.first_psn != a.stop_psn for a, b in pairwise(row))


def _split(rows: Sequence[Sequence[SendSeen]]) -> bool:
    """Each send of one is a piece: what their immediates state is what they come to together."""
    for pieces in zip(*rows, strict=False):
        total = sum(piece.wire_bytes for piece in pieces)
        largest = max(piece.wire_bytes for piece in pieces)
        words = [piece.message.immediate for piece in pieces]
        if total > largest and all(words) and len(set(words)) == 1:
            return total in immediate_sizes(words[0] or 0)
    return False


def _whole(pieces: Sequence[SendSeen]) -> SendSeen:
    """One send of its pieces, by address; an empty piece has none worth looking at."""
    parts = sorted((piece.message for piece in pieces if piece.wire_bytes), key=lambda m: m.va or 0)
    if not parts:
        return pieces[0]
    starts = np.cumsum([0, *(part.wire_bytes for part in parts)]).tolist()
    message: MessageSeen = replace(
        parts[0],
        wire_bytes=starts[-1],
        payload=np.concatenate([part.payload for part in parts]),
        missing=_moved(starts, [part.missing for part in parts]),
        conflicts=_moved(starts, [part.conflicts for part in parts]),
        first_ns=min(part.first_ns for part in parts),
    )
    flag = line_flag(message)
    return replace(
        pieces[0],
        message=message,
        wire_bytes=message.wire_bytes,
        closed=all(piece.closed for piece in pieces),
        flag=flag[1] if flag else None,
        protocol=flag[0] if flag else None,
    )


def _moved(
    starts: Sequence[int], ranges: Sequence[Sequence[tuple[int, int]]]
) -> tuple[tuple[int, int], ...]:
    return tuple((a + at, b + at) for at, own in zip(starts, ranges, strict=False) for a, b in own)


def _by_turns(
    rows: list[list[SendSeen]], granted: Mapping[int, int], *, from_start: bool
) -> tuple[list[SendSeen], ...] | None:
    """The rows in the order of turns that most evidence bears out; None where none does: queue
    pairs overtake each other, so that time does not tell whose turn came first."""
    rows = sorted(rows, key=lambda row: _began(row[0]))
    ways = permutations(rows) if len(rows) <= MOST_PERMUTED else _rotations(rows)
    scored: list[tuple[int, tuple[list[SendSeen], ...]]] = []
    for way in ways:
        lengths = [len(row) for row in way]
        # Who had its turn earlier has as many, or one more; the mirror may end anywhere.
        if lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1:
            told = _borne_out(_dealt(way), granted, from_start=from_start)
            scored.append((told, way))
    scored.sort(key=lambda pair: -pair[0])
    if not scored or not scored[0][0] or (len(scored) > 1 and scored[0][0] == scored[1][0]):
        return None
    way = scored[0][1]
    order = _dealt(way)
    return way if from_start or _flags_count(order) == len(order) else None


def _rotations(rows: Sequence[list[SendSeen]]) -> Iterator[tuple[list[SendSeen], ...]]:
    yield from ((*rows[k:], *rows[:k]) for k in range(len(rows)))


def _borne_out(order: Sequence[SendSeen], granted: Mapping[int, int], *, from_start: bool) -> int:
    """How many sends stand where clear-to-send messages, flags or the walk through slots say."""
    told = _flags_count(order)
    if from_start:
        told += sum(granted.get(n) == send.message.va for n, send in enumerate(order))
    for one, two in pairwise(order):
        slot = SLOT_BYTES[one.protocol or Protocol.SIMPLE]
        if one.message.rkey == two.message.rkey and one.message.va and two.message.va:
            steps, rest = divmod(two.message.va - one.message.va, slot)
            told += not rest and steps % SLOTS in (1, 2)
    return told


def _flags_count(order: Sequence[SendSeen]) -> int:
    """Sends whose flag is the one of the first plus how far behind it they are."""
    first = order[0].flag
    return sum(first is not None and s.flag == first + n for n, s in enumerate(order))
