"""Matches flows of several mirror ports: which are the same queue pair, and how their unwrapped
PSNs align.

A mirror point counts owners of a key, and unwraps PSNs, from what itself saw first. What RETHs
say, address, key and length, tells whether two of them speak of the same messages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, ObservedMessage

PSN_MODULUS = 1 << 24
"""InfiniBand Architecture specification, 9.2.1: a PSN has 24 bits."""
HEAD_BYTES = 16
"""First bytes of a message that are compared: one LL line. A choice: more bytes tell more messages
apart, and need a payload with no hole in them."""

_Start = tuple[int, int, int, int, bytes]
"""24-bit PSN, address, key, length and first bytes of a message with RETH."""


@dataclass(frozen=True, slots=True)
class JoinedFlow:
    """What a mirror point's flow is called where all are joined."""

    flow: FlowKey
    psn_shift: int = 0
    """To add to its unwrapped PSNs: a multiple of 2^24."""


@dataclass(slots=True)
class _Part:
    """One flow of one mirror point."""

    view: int
    flow: ObservedFlow
    messages: list[ObservedMessage]
    shift: int = 0

    @property
    def first_ns(self) -> int:
        return min((m.first_ns for m in self.messages), default=self.flow.first_ns)


@dataclass(slots=True)
class _Owner:
    """One owner of a key."""

    parts: list[_Part] = field(default_factory=list)

    def messages(self) -> Iterator[tuple[ObservedMessage, int]]:
        """Each with its aligned first PSN."""
        for part in self.parts:
            for message in part.messages:
                yield message, message.first_psn + part.shift


def align_flows(
    flows: Sequence[Sequence[ObservedFlow]], messages: Sequence[Sequence[ObservedMessage]]
) -> list[dict[FlowKey, JoinedFlow]]:
    """[mirror point] {its own key: name}; owners of one key are numbered in order of time."""
    own: list[dict[FlowKey, list[ObservedMessage]]] = [defaultdict(list) for _ in flows]
    for view, seen in enumerate(messages):
        for message in seen:
            own[view][message.flow].append(message)
    parts: dict[FlowKey, list[_Part]] = defaultdict(list)
    for view, some in enumerate(flows):
        for flow in some:
            plain = replace(flow.key, incarnation=0)
            parts[plain].append(_Part(view, flow, own[view][flow.key]))
    names: list[dict[FlowKey, JoinedFlow]] = [{} for _ in flows]
    for plain, of_key in parts.items():
        for incarnation, owner in enumerate(_owners(of_key)):
            for part in owner.parts:
                key = replace(plain, incarnation=incarnation)
                names[part.view][part.flow.key] = JoinedFlow(key, part.shift)
    return names


def _owners(parts: Sequence[_Part]) -> list[_Owner]:
    owners: list[_Owner] = []
    for part in sorted(parts, key=lambda part: part.first_ns):
        for owner in owners:
            if any(other.view == part.view for other in owner.parts):
                continue
            shift = _alignment(owner, part)
            if shift is not None:
                part.shift = shift
                owner.parts.append(part)
                break
        else:
            owners.append(_Owner([part]))
    return owners


def _alignment(owner: _Owner, part: _Part) -> int | None:
    """The shift under which both are one flow; None where they are two owners."""
    told = {psn: _start(message) for message, psn in owner.messages()}
    votes: Counter[int] = Counter()
    by_start: dict[_Start, list[int]] = defaultdict(list)
    for psn, start in told.items():
        if start is not None:
            by_start[start].append(psn)
    ours = [(m.first_psn, start) for m in part.messages if (start := _start(m)) is not None]
    for first_psn, start in ours:
        votes.update(psn - first_psn for psn in by_start.get(start, ()))
    if votes:
        most = max(votes.values())
        shift = min((s for s, count in votes.items() if count == most), key=abs)
        differ = sum(told.get(psn + shift) not in (None, start) for psn, start in ours)
        return shift if most >= differ else None
    nearest = _by_time(owner, part)
    if any(told.get(psn + nearest) not in (None, start) for psn, start in ours):
        return None
    here = {start[2] for _, start in ours}
    there = {start[2] for start in told.values() if start is not None}
    return nearest if not here or not there or here & there else None


def _by_time(owner: _Owner, part: _Part) -> int:
    """The shift that puts the part's first message next to what was sent around that time."""
    known = sorted((message.first_ns, psn) for message, psn in owner.messages())
    if not known or not part.messages:
        return 0
    first = min(part.messages, key=lambda message: message.first_ns)
    _, psn = min(known, key=lambda one: abs(one[0] - first.first_ns))
    return round((psn - first.first_psn) / PSN_MODULUS) * PSN_MODULUS


def _start(message: ObservedMessage) -> _Start | None:
    """None where the first packet was not seen whole: it neither agrees nor contradicts."""
    if message.va is None or message.rkey is None:
        return None
    if message.missing and message.missing[0][0] < min(HEAD_BYTES, message.wire_bytes):
        return None
    head = message.payload[:HEAD_BYTES].tobytes()
    psn = message.first_psn % PSN_MODULUS
    return psn, message.va, message.rkey, message.wire_bytes, head


def with_joined_names(
    messages: Sequence[ObservedMessage], names: Mapping[FlowKey, JoinedFlow]
) -> list[ObservedMessage]:
    return [
        replace(
            message,
            flow=names[message.flow].flow,
            first_psn=message.first_psn + names[message.flow].psn_shift,
        )
        for message in messages
    ]
