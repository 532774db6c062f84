"""What the mirror points of one flow counted, as one count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from flowcheck.wire.seen import FlowKey, FlowSeen, MessageSeen, Range


@dataclass(slots=True)
class _Packets:
    """PSNs of one flow, from the messages of all its mirror points."""

    present: list[Range] = field(default_factory=list)

    def add(self, message: MessageSeen, pmtu_bytes: int) -> None:
        """`pmtu_bytes` turns missing bytes into missing packets; messages of one need none."""
        at = message.first_psn
        size = pmtu_bytes if message.packets > 1 else max(1, message.wire_bytes)
        for start, stop in message.missing:
            self.present.append((at, message.first_psn + start // size))
            at = message.first_psn + -(-stop // size)
        self.present.append((at, message.first_psn + message.packets))

    def missing(self, known_stop: int) -> int:
        """Packets between the first PSN seen and `known_stop` that nobody saw."""
        runs = sorted(run for run in self.present if run[0] < run[1])
        gaps, at = 0, runs[0][0] if runs else known_stop
        for start, stop in runs:
            gaps += max(0, start - at)
            at = max(at, stop)
        return gaps + max(0, known_stop - at)


def merge_flows(files: Sequence[list[FlowSeen]], messages: Iterable[MessageSeen]) -> list[FlowSeen]:
    seen: dict[FlowKey, list[FlowSeen]] = defaultdict(list)
    for flows in files:
        for flow in flows:
            seen[flow.key].append(flow)
    of_flow: dict[FlowKey, list[MessageSeen]] = defaultdict(list)
    for message in messages:
        of_flow[message.flow].append(message)
    merged = [
        views[0] if len(views) == 1 else _merge_flow(views, of_flow[key])
        for key, views in seen.items()
    ]
    return merged if len(files) == 1 else sorted(merged, key=lambda flow: flow.first_ns)


def _merge_flow(views: Sequence[FlowSeen], messages: Sequence[MessageSeen]) -> FlowSeen:
    """Counts of frames add up; what is missing or carried is what all together saw."""
    pmtu_bytes = max(view.pmtu_bytes for view in views)
    packets = _Packets()
    absent = 0
    for message in messages:
        packets.add(message, pmtu_bytes)
        absent += sum(stop - start for start, stop in message.missing)
    last = max(views, key=lambda view: view.last_ns)
    return replace(
        last,
        pmtu_bytes=pmtu_bytes,
        frames=sum(view.frames for view in views),
        payload_bytes=sum(message.wire_bytes for message in messages) - absent,
        psn_missing=packets.missing(max((m.first_psn + m.packets for m in messages), default=0)),
        psn_duplicate=sum(view.psn_duplicate for view in views),
        icrc_bad=sum(view.icrc_bad for view in views),
        acks=sum(view.acks for view in views),
        first_ns=min(view.first_ns for view in views),
    )
