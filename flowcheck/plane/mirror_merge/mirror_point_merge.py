"""Merges flows, counts and messages that several mirror ports saw into one view."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from flowcheck.plane.extraction.psn_alignment import JoinedFlow, align_flows, with_joined_names
from flowcheck.plane.extraction.staged_snapshot import OrphanPacket, StagedSnapshot
from flowcheck.plane.mirror_merge.missing_write_starts import with_recovered_starts
from flowcheck.plane.shared_memory.flow_table import psn_missing, psn_missing_at_end
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, ObservedMessage, Range

OTHER_BYTES_MAX = 1 << 16
"""Bytes: of a message of which more differ the other copy's are not kept. A choice that bounds what
a mirror takes that damages everything."""


@dataclass(slots=True)
class _Packets:
    """PSNs of one flow, from the messages of all its mirror points."""

    present: list[Range] = field(default_factory=list)

    def add(self, message: ObservedMessage, pmtu_bytes: int) -> None:
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

    def missing_at_end(self, known_stop: int) -> int:
        """Those of them that lie behind the last one seen."""
        seen = [stop for start, stop in self.present if start < stop]
        return max(0, known_stop - max(seen)) if seen else 0


def merge_flows(
    files: Sequence[list[ObservedFlow]], messages: Iterable[ObservedMessage]
) -> list[ObservedFlow]:
    seen: dict[FlowKey, list[ObservedFlow]] = defaultdict(list)
    for flows in files:
        for flow in flows:
            seen[flow.key].append(flow)
    of_flow: dict[FlowKey, list[ObservedMessage]] = defaultdict(list)
    for message in messages:
        of_flow[message.flow].append(message)
    merged = [
        views[0] if len(views) == 1 else _merge_flow(views, of_flow[key])
        for key, views in seen.items()
    ]
    return merged if len(files) == 1 else sorted(merged, key=lambda flow: flow.first_ns)


def _merge_flow(views: Sequence[ObservedFlow], messages: Sequence[ObservedMessage]) -> ObservedFlow:
    """Counts of frames add up; what is missing or carried is what all together saw."""
    pmtu_bytes = max(view.pmtu_bytes for view in views)
    packets = _Packets()
    absent = 0
    for message in messages:
        packets.add(message, pmtu_bytes)
        absent += sum(stop - start for start, stop in message.missing)
    last = max(views, key=lambda view: view.last_ns)
    known_stop = max((m.first_psn + m.packets for m in messages), default=0)
    return replace(
        last,
        pmtu_bytes=pmtu_bytes,
        frames=sum(view.frames for view in views),
        payload_bytes=sum(message.wire_bytes for message in messages) - absent,
        psn_missing=packets.missing(known_stop),
        psn_missing_at_end=packets.missing_at_end(known_stop),
        psn_duplicate=sum(view.psn_duplicate for view in views),
        icrc_bad=sum(view.icrc_bad for view in views),
        acks=sum(view.acks for view in views),
        first_ns=min(view.first_ns for view in views),
    )


def merge_message(one: ObservedMessage, other: ObservedMessage) -> tuple[ObservedMessage, int]:
    """One message seen at two mirror points; and the bytes on which they differ.

    A message whose start was seen is believed about its length before one whose was not.
    """
    kept, extra = (
        (other, one) if one.length_inferred and not other.length_inferred else (one, other)
    )
    if _contradict(kept, extra):
        everything = ((0, kept.wire_bytes),) if kept.wire_bytes else ()
        return replace(kept, conflicts=everything), min(kept.wire_bytes, extra.wire_bytes)
    here, there = _present(kept), _present(extra)
    different = here & there & (kept.payload != extra.payload)
    differ = int(np.count_nonzero(different))
    others = [
        (start, extra.payload[start:stop].tobytes())
        for start, stop in _ranges(~different)
        if differ <= OTHER_BYTES_MAX
    ]
    for start, stop in (*kept.conflicts, *extra.conflicts):
        different[start:stop] = True
    payload = kept.payload
    if kept.missing:
        payload = np.where(here, kept.payload, extra.payload)
    return (
        replace(
            kept,
            payload=payload,
            missing=_ranges(here | there),
            conflicts=_ranges(~different),
            others=(*kept.others, *extra.others, *others),
            number=extra.number if kept.number is None else kept.number,
            psn_counted=kept.psn_counted or extra.psn_counted,
            immediate=extra.immediate if kept.immediate is None else kept.immediate,
            line_flag=extra.line_flag if kept.line_flag is None else kept.line_flag,
            first_ns=min(kept.first_ns, extra.first_ns),
        ),
        differ,
    )


def _contradict(one: ObservedMessage, other: ObservedMessage) -> bool:
    """They cannot be copies of one message, or nobody knows how their bytes lie to each other."""
    both_told = one.va is not None and other.va is not None
    elsewhere = (one.va, one.rkey) != (other.va, other.rkey)
    return one.wire_bytes != other.wire_bytes or (both_told and elsewhere)


def _present(message: ObservedMessage) -> NDArray[np.bool_]:
    present = np.ones(message.wire_bytes, bool)
    for start, stop in message.missing:
        present[start:stop] = False
    return present


def _ranges(present: NDArray[np.bool_]) -> tuple[Range, ...]:
    """[start, stop) of every run of False."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], present, [True]]).astype(np.int8)))
    return tuple((int(start), int(stop)) for start, stop in edges.reshape(-1, 2))


def merge_messages(files: Sequence[list[ObservedMessage]]) -> tuple[list[ObservedMessage], int]:
    if len(files) == 1:
        return files[0], 0
    merged: dict[tuple[FlowKey, int], ObservedMessage] = {}
    conflicts = 0
    for messages in files:
        for message in messages:
            name = (message.flow, message.first_psn)
            if name in merged:
                merged[name], differ = merge_message(merged[name], message)
                conflicts += differ
            else:
                merged[name] = message
    in_order = sorted(merged.values(), key=lambda message: message.time)
    return [replace(message, order=order) for order, message in enumerate(in_order, 1)], conflicts


def attach_orphans(
    strays: Iterable[OrphanPacket],
    messages: Sequence[ObservedMessage],
    pmtu_bytes: dict[FlowKey, int],
) -> tuple[list[ObservedMessage], int, int]:
    """Gives strays to the messages another mirror point knows.

    Returns the messages, the bytes on which a stray and a message differ, and how many strays
    found none.
    """
    out = list(messages)
    of_flow: dict[FlowKey, list[int]] = defaultdict(list)
    for index, message in enumerate(out):
        of_flow[message.flow].append(index)
    for indices in of_flow.values():
        indices.sort(key=lambda index: out[index].first_psn)
    homeless = conflicts = 0
    for stray in strays:
        indices = of_flow.get(stray.flow, [])
        nth = bisect_right(indices, stray.psn, key=lambda index: out[index].first_psn) - 1
        found = out[indices[nth]] if nth >= 0 else None
        start = (stray.psn - found.first_psn) * pmtu_bytes[stray.flow] if found else 0
        stop = start + len(stray.payload)
        if found is None or stop > found.wire_bytes:
            homeless += 1
            continue
        payload = np.zeros_like(found.payload)
        payload[start:stop] = stray.payload
        around = tuple(r for r in ((0, start), (stop, found.wire_bytes)) if r[0] < r[1])
        out[indices[nth]], differ = merge_message(
            found, replace(found, payload=payload, missing=around)
        )
        conflicts += differ
    return out, conflicts, homeless


def flow_seen(record: np.void, key: FlowKey) -> ObservedFlow:
    return ObservedFlow(
        key=key,
        udp_source_port=int(record["udp_source_port"]),
        pmtu_bytes=int(record["pmtu_bytes"]),
        frames=int(record["write_packets"]) + int(record["ack_packets"]),
        payload_bytes=int(record["payload_bytes"]),
        psn_missing=psn_missing(record),
        psn_missing_at_end=psn_missing_at_end(record),
        psn_duplicate=int(record["duplicate_packets"]),
        icrc_bad=int(record["icrc_bad_frames"]),
        acks=int(record["ack_packets"]),
        first_ns=int(record["first_ns"]),
        last_ns=int(record["last_ns"]),
    )


@dataclass(frozen=True, slots=True)
class MirrorView:
    """What one mirror point saw."""

    flows: list[ObservedFlow]
    messages: list[ObservedMessage]
    strays: list[OrphanPacket]


@dataclass(frozen=True, slots=True)
class MergedView:
    """What all mirror points saw, as one."""

    flows: list[ObservedFlow]
    messages: list[ObservedMessage]
    conflicts: int
    """Bytes on which two mirror points differ; the first one is kept."""
    unmatched_packets: int
    """Packets whose message nobody knows."""
    names: list[dict[FlowKey, JoinedFlow]]
    """[view] what its flows are called here."""


def mirror_view(seen: StagedSnapshot) -> MirrorView:
    """What one mirror point saw; payloads of whole messages are read where they are staged."""
    flows = [flow_seen(record, key) for record, key in zip(seen.flows, seen.keys, strict=True)]
    return MirrorView(flows=flows, messages=seen.messages(), strays=list(seen.orphans))


def merge_mirror_points(views: Sequence[MirrorView]) -> MergedView:
    """Merges mirror points of one job: the same owner and first PSN name the same message."""
    names = align_flows([view.flows for view in views], [view.messages for view in views])
    if len(views) > 1:
        views = [_called(view, own) for view, own in zip(views, names, strict=True)]
    messages, conflicts = merge_messages([view.messages for view in views])
    pmtu_bytes: dict[FlowKey, int] = defaultdict(int)
    for flow in (flow for view in views for flow in view.flows):
        pmtu_bytes[flow.key] = max(pmtu_bytes[flow.key], flow.pmtu_bytes)
    strays = [stray for view in views for stray in view.strays]
    lost: dict[FlowKey, dict[int, int]] = defaultdict(dict)
    for stray in sorted(strays, key=lambda stray: stray.psn):
        lost[stray.flow][stray.psn] = len(stray.payload)
    messages = with_recovered_starts(messages, lost, pmtu_bytes)
    messages, differ, homeless = attach_orphans(strays, messages, pmtu_bytes)
    flows = merge_flows([view.flows for view in views], messages)
    return MergedView(flows, messages, conflicts + differ, homeless, names)


def _called(view: MirrorView, names: dict[FlowKey, JoinedFlow]) -> MirrorView:
    """The view with the names and PSNs of the join."""
    return MirrorView(
        flows=[replace(flow, key=names[flow.key].flow) for flow in view.flows],
        messages=with_joined_names(view.messages, names),
        strays=[
            OrphanPacket(names[s.flow].flow, s.psn + names[s.flow].psn_shift, s.payload)
            for s in view.strays
        ],
    )
