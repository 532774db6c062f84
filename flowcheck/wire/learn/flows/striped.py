"""Several queue pairs of one connection: whole sends by turns, or a piece of each on every one.

NCCL_IB_QPS_PER_CONNECTION and NCCL_IB_SPLIT_DATA_ON_QPS (NCCL src/transport/net_ib,
ncclIbMultiSend): by turns since 2.20, split before. They share the receiver's buffers, so keys and
addresses tell which belong together; only the first one carries clear-to-send messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flowcheck.wire.learn.flows import pieces
from flowcheck.wire.learn.flows.clean_flows import CleanSends
from flowcheck.wire.learn.flows.numbering import Granted, has_gaps
from flowcheck.wire.learn.flows.streams import PSN_OF_START, SendSeen
from flowcheck.wire.learn.flows.turns import dealt, turns_of
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow

BLOCK_BYTES = 16 << 20
"""A connection's buffers of all protocols lie closer than this (src/transport/net.cc: 9.3 MiB)."""

Sent = Sequence[SendSeen] | CleanSends
Sends = Mapping[FlowKey, Sent]
Buffers = Mapping[int, tuple[int, int]]
"""{key: (first address, last address)} of what was written."""
Held = Mapping[FlowKey, Buffers]
Group = tuple[ObservedFlow, ...]


def groups(
    flows: Sequence[ObservedFlow], sends: Sends, granting: Sequence[ObservedFlow]
) -> list[Group]:
    """Data flows by connection, the one that was used first leading; most have one flow each.

    granting: the clear-to-send flows.
    """
    held = {flow.key: _buffers(sends[flow.key]) for flow in flows}
    found: list[list[ObservedFlow]] = []
    for flow in sorted(flows, key=lambda f: _began(sends[f.key][0])):
        homes = (g for g in found if all(_share(flow, other, held) for other in g))
        beside = (g for g in homes if not all(_apart(flow, other) for other in g))
        home = next(beside, None)
        if home is None or _own_grants((*home, flow), granting) > 1:
            found.append([flow])
        else:
            home.append(flow)
    return [tuple(group) for group in _one_after_the_other(found, sends, held, granting)]


def _one_after_the_other(
    found: Sequence[list[ObservedFlow]],
    sends: Sends,
    held: Held,
    granting: Sequence[ObservedFlow],
) -> list[list[ObservedFlow]]:
    """Groups, with those that nothing grants added to the nearest that shares their buffers: of a
    connection of few sends each queue pair may be done before the next one begins."""
    granted = [list(group) for group in found if _own_grants(group, granting) == 1]
    others = []
    for group in (group for group in found if _own_grants(group, granting) != 1):
        homes = [
            home
            for home in granted
            if all(
                _share(one, other, held) and abs(len(sends[one.key]) - len(sends[other.key])) <= 1
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
        others = _by_pieces(others, sends, held)
    ordered = (sorted(g, key=lambda f: _began(sends[f.key][0])) for g in (*granted, *others))
    return sorted(ordered, key=lambda g: _began(sends[g[0].key][0]))


def _by_pieces(
    found: Sequence[list[ObservedFlow]], sends: Sends, held: Held
) -> list[list[ObservedFlow]]:
    """Groups, with those in one that share buffers and hold the pieces of the same sends."""
    merged: list[list[ObservedFlow]] = []
    for group in found:
        if any(group[0] in of for of in merged):
            continue
        alike = [
            flow
            for other in found
            for flow in other
            if not any(flow in of for of in merged) and _share(group[0], flow, held)
        ]
        whole = len(alike) > len(group) and pieces.is_split(
            [listed(sends[flow.key]) for flow in alike]
        )
        merged.append(alike if whole else group)
    return merged


def _apart(one: ObservedFlow, two: ObservedFlow) -> bool:
    return one.last_ns < two.first_ns or two.last_ns < one.first_ns


def _began(send: SendSeen) -> tuple[int, int]:
    """Frames of one burst may have one time stamp."""
    return send.message.time


def _share(one: ObservedFlow, two: ObservedFlow, held: Held) -> bool:
    """They write to the same buffers by the same keys."""
    if (one.key.source, one.key.destination) != (two.key.source, two.key.destination):
        return False
    mine, others = held[one.key], held[two.key]
    shared = mine.keys() & others.keys()
    spans = [(*mine[key], *others[key]) for key in shared]
    return bool(shared) and all(max(span) - min(span) < BLOCK_BYTES for span in spans)


def _buffers(sends: Sent) -> Buffers:
    if isinstance(sends, CleanSends):
        return sends.written
    written: dict[int, set[int]] = {}
    for message in (send.message for send in sends):
        if message.va and message.rkey is not None:
            written.setdefault(message.rkey, set()).add(message.va)
    return {key: (min(addresses), max(addresses)) for key, addresses in written.items()}


def _own_grants(members: Sequence[ObservedFlow], granting: Sequence[ObservedFlow]) -> int:
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


def listed(sends: Sent) -> Sequence[SendSeen]:
    """Each by itself."""
    return list(sends.values()) if isinstance(sends, CleanSends) else sends


def joined(
    group: Group, sends: Mapping[FlowKey, Sequence[SendSeen]], granted: Granted
) -> Connection | None:
    """None where loss or a start in the middle leaves the order of sends open."""
    rows: Sequence[pieces.Row] = [sends[flow.key] for flow in group]
    from_start = all(row[0].first_psn == PSN_OF_START for row in rows)
    amid = not any(row[0].first_psn == PSN_OF_START for row in rows)
    beside = pieces.side_by_side(rows) if amid else rows
    split = pieces.is_split(beside)
    if split:
        rows = beside
        whole = pieces.put_together(rows, max(flow.pmtu_bytes for flow in group))
        if whole is None:
            return None
        found = whole
        from_start = found[0].first_psn == PSN_OF_START
        turns = tuple(group[i].key for i in pieces.by_address(rows))
    else:
        if any(map(has_gaps, rows)):
            return None
        way = turns_of(rows, granted, from_start=from_start)
        if way is None:
            return None
        found = dealt(way.rows)
        turns = tuple(group[i].key for i in way.order)
    first = PSN_OF_START if from_start else PSN_OF_START + 1
    made = (
        replace(send, first_psn=first + n, stop_psn=first + n + 1) for n, send in enumerate(found)
    )
    return Connection(tuple(made), turns, split)
