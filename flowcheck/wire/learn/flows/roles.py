"""What each flow is for, and which two flows are the two directions of one queue pair."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from flowcheck.findings.catalog.connections import NUMBERED_BY_GRANT
from flowcheck.wire.collectives import nccl_wire_format
from flowcheck.wire.collectives.nccl_parameters import LL_LINE_BYTES, Protocol
from flowcheck.wire.learn.flows import striped
from flowcheck.wire.learn.flows.clean_flows import CleanSends, clean_sends, numbered_clean
from flowcheck.wire.learn.flows.foreign import of_another_protocol
from flowcheck.wire.learn.flows.granted_buffers import NONE_GRANTED, GrantedBuffers
from flowcheck.wire.learn.flows.grants import P2P_CAPACITY_BYTES, Grants
from flowcheck.wire.learn.flows.line_flags import line_flag
from flowcheck.wire.learn.flows.merged_ports import ports_of
from flowcheck.wire.learn.flows.numbering import (
    Numbered,
    number_sends,
)
from flowcheck.wire.learn.flows.speed_updates import without_speed_updates
from flowcheck.wire.learn.flows.streams import SendSeen, Stream, join_sends, unless_out_of_step
from flowcheck.wire.learn.flows.trains import whole_writes
from flowcheck.wire.learn.reading import FlowReading
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, ObservedMessage

__all__ = ["CTS", "DATA", "OTHER", "P2P_CAPACITY_BYTES", "Grants", "Sorted", "sort_flows"]

DATA, CTS, OTHER = "data", "cts", "other"
_wire_bytes = attrgetter("wire_bytes")


@dataclass(frozen=True, slots=True)
class Sorted:
    """Every flow by its role."""

    streams: tuple[Stream, ...]
    grants: tuple[Grants, ...]
    readings: tuple[FlowReading, ...]
    in_pieces: int = 0
    """Flows whose sends came in many writes each."""
    merged_ports: int = 1
    """Most ports of a connection that is left out for having several."""

    def with_streams(self, streams: tuple[Stream, ...]) -> Sorted:
        """The same with other numbers of their sends."""
        told = {stream.key: stream for stream in streams}
        readings = tuple(
            reading
            if (own := told.get(reading.seen.key)) is None
            else replace(reading, numbered_by=own.numbered_by, problems=own.problems)
            for reading in self.readings
        )
        return replace(self, streams=streams, readings=readings)


def sort_flows(flows: Sequence[ObservedFlow], messages: Sequence[ObservedMessage]) -> Sorted:
    """Roles, pairs, protocols and numbers of all flows; nothing about collectives yet."""
    of_flow = _by_flow(messages)
    in_pieces = 0
    for key, own in of_flow.items():
        of_flow[key], several = whole_writes(own)
        in_pieces += several
    grants = [g for f in flows if (g := _read_grants(f, of_flow[f.key])) is not None]
    granting = {g.flow.key for g in grants}
    data = [f for f in flows if f.key not in granting and _is_data(of_flow[f.key])]
    buffers = _buffers(grants)
    sends = {
        flow.key: _sends(
            flow,
            of_flow[flow.key],
            buffers.get((flow.key.source, flow.key.destination), NONE_GRANTED),
        )
        for flow in data
    }
    data = [
        flow
        for flow in data
        if isinstance(sends[flow.key], CleanSends) or not of_another_protocol(of_flow[flow.key])
    ]
    streams: list[Stream] = []
    for group in striped.groups(data, sends, [g.flow for g in grants]):
        streams += _streams(group, of_flow, sends, grants)
    readings = tuple(_reading(f, of_flow[f.key], streams, grants, flows) for f in flows)
    return _on_single_ports(Sorted(tuple(streams), tuple(grants), readings, in_pieces))


def _on_single_ports(told: Sorted) -> Sorted:
    """Without what goes between ports of which a connection has several."""
    ports = {grant.flow.key: ports_of(grant) for grant in told.grants}
    merged = {(key.destination, key.source) for key, count in ports.items() if count > 1}
    if not merged:
        return told
    return replace(
        told,
        streams=tuple(s for s in told.streams if (s.key.source, s.key.destination) not in merged),
        grants=tuple(g for g in told.grants if ports[g.flow.key] == 1),
        merged_ports=max(ports.values()),
    )


def _by_flow(messages: Sequence[ObservedMessage]) -> dict[FlowKey, list[ObservedMessage]]:
    """Those of each flow, in their order. A reader has one key for all messages of a flow, which
    need not be hashed for each."""
    names: dict[int, list[ObservedMessage]] = defaultdict(list)
    for message in messages:
        names[id(message.flow)].append(message)
    found: dict[FlowKey, list[ObservedMessage]] = defaultdict(list)
    found |= {own[0].flow: own for own in names.values()}
    if len(found) < len(names):
        found.clear()
        for message in messages:
            found[message.flow].append(message)
    return found


def _read_grants(flow: ObservedFlow, messages: Sequence[ObservedMessage]) -> Grants | None:
    """The flow as clear-to-send messages; None if it is anything else."""
    if not messages:
        return None
    for message in messages:
        if message.immediate is not None or message.missing:
            return None
    entries, own = _entries(messages), messages
    if entries is None:
        own, updates = without_speed_updates(messages)
        entries = _entries(own) if own and updates else None
    if entries is None:
        return None
    return Grants(flow, entries, own, speed_updates=len(messages) - len(own))


def _entries(messages: Sequence[ObservedMessage]) -> nccl_wire_format.ClearToSends | None:
    payloads = [m.payload for m in messages]
    return nccl_wire_format.recognise_cts(payloads, [m.va or 0 for m in messages])


def _buffers(grants: Sequence[Grants]) -> dict[tuple[str, str], GrantedBuffers]:
    """{(who writes, who reads): the buffers that the latter told the former}."""
    told: dict[tuple[str, str], list[nccl_wire_format.ClearToSend]] = defaultdict(list)
    for grant in grants:
        key = grant.flow.key
        told[key.destination, key.source] += grant.entries.distinct()
    return {ends: GrantedBuffers(entries) for ends, entries in told.items()}


def _is_data(messages: Sequence[ObservedMessage]) -> bool:
    """NCCL's sends end with an immediate; where every end was lost, lines tell, or that no
    message was seen to end without one."""
    if not messages:
        return False
    if any(m.immediate is not None or line_flag(m) is not None for m in messages):
        return True
    return all(m.missing and m.missing[-1][1] == m.wire_bytes for m in messages)


def _sends(
    flow: ObservedFlow, messages: Sequence[ObservedMessage], buffers: GrantedBuffers
) -> striped.Sent:
    clean = clean_sends(messages, buffers)
    return join_sends(messages, flow.pmtu_bytes, buffers) if clean is None else clean


def _streams(
    queue_pairs: striped.Group,
    of_flow: Mapping[FlowKey, Sequence[ObservedMessage]],
    sends: striped.Sends,
    grants: Sequence[Grants],
) -> list[Stream]:
    """Of one connection: one stream, or one of each queue pair where their order is open."""
    written = {flow: {m.va for m in of_flow[flow.key] if m.va} for flow in queue_pairs}
    if len(queue_pairs) > 1:
        granter = _granter(queue_pairs[0], set().union(*written.values()), grants)
        listed = {flow.key: striped.listed(sends[flow.key]) for flow in queue_pairs}
        whole = striped.joined(queue_pairs, listed, granter.granted if granter else {})
        if whole is not None:
            stream = _stream(queue_pairs[0], unless_out_of_step(whole.sends), granter)
            stream.queue_pairs = tuple(flow.key for flow in queue_pairs)
            stream.turns, stream.split = whole.turns, whole.split
            return [stream]
    streams: list[Stream] = []
    for flow, addresses in written.items():
        own, granter = sends[flow.key], _granter(flow, addresses, grants)
        if isinstance(own, CleanSends) and len(queue_pairs) == 1:
            clean = _clean_stream(flow, own, granter)
            if clean is not None:
                return [clean]
        told = unless_out_of_step(striped.listed(own), queue_pairs=len(queue_pairs))
        streams.append(_stream(flow, told, granter))
    return streams


def _clean_stream(flow: ObservedFlow, sends: CleanSends, granter: Grants | None) -> Stream | None:
    """As `_stream`; None where clear-to-send messages contradict what the sends are."""
    if granter is None:
        return None
    simple = Protocol.SIMPLE in granter.protocols
    numbered = numbered_clean(sends, granter.entries, flags_count=not simple)
    if numbered is None:
        return None
    stream = _connection(flow, numbered, granter.protocol or sends.protocol, granter)
    stream.table, stream.sizes_stated, stream.one_write_each = sends.table(), sends.stated, True
    return stream


def _stream(flow: ObservedFlow, sends: Sequence[SendSeen], granter: Grants | None) -> Stream:
    protocol = _protocol(sends, granter)
    lines = _only_lines(sends, granter)
    granted = granter.granted if granter is not None else {}
    numbered = number_sends(sends, granted, flags_count=lines)
    _tell(sends, granter, protocol)
    return _connection(flow, numbered, protocol or _most(sends), granter)


def _connection(
    flow: ObservedFlow, numbered: Numbered, protocol: Protocol, granter: Grants | None
) -> Stream:
    return Stream(
        flow=flow,
        sends=numbered.sends,
        protocol=protocol,
        from_start=numbered.from_start,
        numbered_by=numbered.numbered_by,
        problems=numbered.problems,
        open_numbers=numbered.open_numbers,
        peer=granter.flow.key if granter else None,
        tag=granter.tag if granter else None,
        capacities_bytes=granter.capacities_bytes if granter else frozenset(),
        pooled=granter is not None and granter.pooled,
        queue_pairs=(flow.key,),
        turns=(flow.key,),
    )


def _granter(
    flow: ObservedFlow, addresses: Collection[int], grants: Sequence[Grants]
) -> Grants | None:
    """The clear-to-send flow of the same queue pair: addresses granted are addresses written;
    the UDP source port is the same in both directions and decides where addresses cannot."""
    best: tuple[int, int] = (0, 0)
    found: Grants | None = None
    for grant in grants:
        key = grant.flow.key
        if (key.source, key.destination) != (flow.key.destination, flow.key.source):
            continue
        hits = grant.hits(addresses)
        score = (hits, int(grant.flow.udp_source_port == flow.udp_source_port))
        if score > best and (hits or not addresses):
            best, found = score, grant
    return found


def _protocol(sends: Sequence[SendSeen], granter: Grants | None) -> Protocol | None:
    """Of all sends, if it is one: by the capacities granted and the lines of what else was sent,
    else by the flags; None: it is not."""
    if granter is not None and granter.pooled:
        return Protocol.SIMPLE
    if granter is not None:
        others = {s.protocol for s in sends if s.flag is not None and s.granted is None}
        told = granter.protocols | others
        if len(told) == 1 and (only := next(iter(told))) is not None:
            return only
    found = {s.protocol for s in sends if _has_line(s)}
    if len(found) <= 1:
        return found.pop() if found and None not in found else Protocol.SIMPLE
    return None


def _only_lines(sends: Sequence[SendSeen], granter: Grants | None) -> bool:
    """No send is Simple, so that every send is one step of the connection and flags count sends."""
    if granter is not None and granter.pooled:
        return False
    if granter is not None and granter.capacities_bytes:
        lines = all(s.protocol for s in sends if _has_line(s))
        return lines and Protocol.SIMPLE not in granter.protocols
    return all(s.flag is not None for s in sends if _has_line(s))


def _tell(sends: Sequence[SendSeen], granter: Grants | None, only: Protocol | None) -> None:
    """Each send is of the protocol that is sure: of its own receive, of all, of its own lines. What
    looks like a line's flag in Simple data is none."""
    if granter is not None and only is not None and only is granter.protocol:
        for send in sends:
            send.protocol = only
    else:
        for send in sends:
            granted = granter.protocol_of(send) if granter is not None else None
            told = granted or only or send.protocol
            send.protocol = told or (Protocol.SIMPLE if _has_line(send) else None)
    for send in sends:
        if send.protocol is Protocol.SIMPLE:
            send.flag = None


def _most(sends: Iterable[SendSeen]) -> Protocol:
    """The protocol of most bytes."""
    count: Counter[Protocol] = Counter()
    for send in sends:
        count[send.protocol or Protocol.SIMPLE] += send.wire_bytes
    return count.most_common(1)[0][0]


def _has_line(send: SendSeen) -> bool:
    """At least one line of it was captured."""
    size = send.message.wire_bytes
    return size > 0 and size - sum(b - a for a, b in send.message.missing) >= LL_LINE_BYTES


def _reading(
    flow: ObservedFlow,
    messages: Sequence[ObservedMessage],
    streams: Sequence[Stream],
    grants: Sequence[Grants],
    flows: Sequence[ObservedFlow],
) -> FlowReading:
    stream = next((s for s in streams if flow.key in s.queue_pairs), None)
    grant = next((g for g in grants if g.flow.key == flow.key), None)
    peer = stream.peer if stream else None
    protocol = stream.protocol if stream else None
    if grant:
        data = next((s for s in streams if s.peer == flow.key), None)
        peer = data.key if data else None
        protocol = data.protocol if data else grant.protocol
    return FlowReading(
        seen=flow,
        role=DATA if stream else CTS if grant else OTHER,
        protocol=protocol,
        peer=peer or _reverse(flow, flows),
        messages=len(messages),
        bytes=sum(map(_wire_bytes, messages)),
        numbered_by=stream.numbered_by if stream else (NUMBERED_BY_GRANT(),) if grant else (),
        problems=stream.problems if stream else (),
    )


def _reverse(flow: ObservedFlow, flows: Sequence[ObservedFlow]) -> FlowKey | None:
    """The only flow between the same addresses, other way, of the same UDP source port."""
    found = [
        other.key
        for other in flows
        if (other.key.source, other.key.destination) == (flow.key.destination, flow.key.source)
        and other.udp_source_port == flow.udp_source_port
    ]
    return found[0] if len(found) == 1 else None
