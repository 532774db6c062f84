"""Several queue pairs of one connection: whole sends by turns, or a piece of each on every one.

NCCL_IB_QPS_PER_CONNECTION and NCCL_IB_SPLIT_DATA_ON_QPS (NCCL src/transport/net_ib,
ncclIbMultiSend): by turns since 2.20, split before. They share the receiver's buffers, so keys and
addresses tell which belong together; only the first one carries clear-to-send messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

from flowcheck.wire.learn.flows import pieces
from flowcheck.wire.learn.flows.numbering import PSN_OF_START
from flowcheck.wire.learn.flows.streams import SendSeen
from flowcheck.wire.nccl import SLOT_BYTES, SLOTS
from flowcheck.wire.seen import FlowKey, FlowSeen
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
        beside = (g for g in homes if not all(_apart(flow, other) for other in g))
        home = next(beside, None)
        if home is None or _own_grants((*home, flow), granting) > 1:
            found.append([flow])
        else:
            home.append(flow)
    return [tuple(group) for group in _one_after_the_other(found, sends, granting)]


def _one_after_the_other(
    found: Sequence[list[FlowSeen]], sends: Sends, granting: Sequence[FlowSeen]
) -> list[list[FlowSeen]]:
    """Groups, with those that nothing grants added to the nearest that shares their buffers: of a
    connection of few sends each queue pair may be done before the next one begins."""
    granted = [list(group) for group in found if _own_grants(group, granting) == 1]
    others = []
    for group in (group for group in found if _own_grants(group, granting) != 1):
        homes = [
            home
            for home in granted
            if all(
                _share(one, other, sends, granting)
                and abs(len(sends[one.key]) - len(sends[other.key])) <= 1
                for one in group
                for other in home
            )
        ]
        if homes:
            at = group[0].first_ns
            min(homes, key=lambda home: abs(home[0].first_ns - at)).extend(group)
        else:
            others.append(group)
    if not granted and len(others) > 1:
        others = _by_pieces(others, sends, granting)
    ordered = (sorted(g, key=lambda f: _began(sends[f.key][0])) for g in (*granted, *others))
    return sorted(ordered, key=lambda g: _began(sends[g[0].key][0]))


def _by_pieces(
    found: Sequence[list[FlowSeen]], sends: Sends, granting: Sequence[FlowSeen]
) -> list[list[FlowSeen]]:
    """Groups, with those in one that share buffers and hold the pieces of the same sends."""
    merged: list[list[FlowSeen]] = []
    for group in found:
        if any(group[0] in of for of in merged):
            continue
        alike = [
            flow
            for other in found
            for flow in other
            if not any(flow in of for of in merged) and _share(group[0], flow, sends, granting)
        ]
        whole = len(alike) > len(group) and pieces.is_split([sends[flow.key] for flow in alike])
        merged.append(alike if whole else group)
    return merged


def _apart(one: FlowSeen, two: FlowSeen) -> bool:
    return one.last_ns < two.first_ns or two.last_ns < one.first_ns


def _began(send: SendSeen) -> tuple[int, int]:
    """Frames of one burst may have one time stamp."""
    return send.message.time


def _share(one: FlowSeen, two: FlowSeen, sends: Sends, granting: Sequence[FlowSeen]) -> bool:
    """They write to the same buffers by the same keys."""
    if (one.key.source, one.key.destination) != (two.key.source, two.key.destination):
        return False
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
    from_start = all(row[0].first_psn == PSN_OF_START for row in rows)
    split = pieces.is_split(rows)
    if split:
        whole = pieces.put_together(rows, max(flow.pmtu_bytes for flow in group))
        if whole is None:
            return None
        found = whole
        from_start = found[0].first_psn == PSN_OF_START
        turns = tuple(group[i].key for i in pieces.by_address(rows))
    else:
        if any(map(pieces.gaps, rows)):
            return None
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


def _dealt(way: Sequence[Sequence[SendSeen]]) -> list[SendSeen]:
    """One of each row after another."""
    return [way[n % len(way)][n // len(way)] for n in range(sum(map(len, way)))]


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
