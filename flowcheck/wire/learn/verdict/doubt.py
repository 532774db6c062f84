"""What a reading rests on: doubts that forbid to call it complete, and what is only assumed."""

from __future__ import annotations

from flowcheck.findings.catalog.collective_evidence import (
    FEWEST_RANKS,
    KIND_FROM_SIZES,
    KIND_FROM_SIZES_WITH_LOSS,
    KIND_OF_LOST_SENDS,
    ONE_ALL_REDUCE,
    OTHER_RANKS,
    RELEASE_OPEN,
    RING_STEPS,
    SCATTERED_NOT_GATHERED,
    SIZE_BESIDE_LOST_CHANNEL,
    SIZE_BESIDE_UNREAD,
    SIZE_OF_LOST_SENDS,
)
from flowcheck.findings.catalog.connections import CHANNEL_ORDER_OPEN
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import LL_LINE_DATA_BYTES as LINE_BYTES
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.collectives.ring_schedule import Send
from flowcheck.wire.collectives.tensor_size_fit import CollectiveSetting, EdgeSizes, totals_fitting
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.gathers import GATHERED, SCATTERED
from flowcheck.wire.learn.search.releases import releases_open
from flowcheck.wire.learn.trainer.habits import COUNT, WEIGHTS
from flowcheck.wire.learn.verdict.beside import passed_over
from flowcheck.wire.learn.verdict.ends import open_range
from flowcheck.wire.learn.verdict.writers import channels_open, writers_open

MANY_SENDS = 4
"""Sends with payload that make a ring collective of sizes which single broadcasts might have."""


def doubts_about(cut: Cut, communicator: Communicator) -> list[Finding]:
    """Why the sends of `cut` may be another collective, or one of another size."""
    if cut.doubt:
        return [cut.doubt]
    if told := writers_open(cut, communicator):
        return [told]
    if communicator.ring.order.is_any_of(CHANNEL_ORDER_OPEN) and channels_open(cut, communicator):
        return [communicator.ring.order]
    if releases_open(cut, communicator):
        return [RELEASE_OPEN()]
    if (
        cut.op.kind is CollectiveKind.ALL_REDUCE
        and not cut.op.licensed
        and _channel_lost(cut, communicator)
    ):
        return [SIZE_BESIDE_LOST_CHANNEL()]
    types = communicator.habits.types
    if cut.op.meaning == WEIGHTS and not cut.matched and not (types and types.sent):
        return [SIZE_OF_LOST_SENDS()]  # frozen parameters and buffers may be among them
    if cut.op.meaning == WEIGHTS and passed_over(cut, communicator):
        return [SIZE_BESIDE_UNREAD()]
    if cut.op.licensed:
        return []
    if cut.op.kind is CollectiveKind.ALL_REDUCE:
        if cut.lost and not _seen_whole(cut, communicator) and not _only_total(cut, communicator):
            return [SIZE_OF_LOST_SENDS()]
        if cut.lost and not _kind_told(cut, communicator):
            return [KIND_OF_LOST_SENDS()]
        return []
    if not _clean(communicator):
        return [KIND_FROM_SIZES_WITH_LOSS(cut.op.kind)]
    return []


def unread_since(communicator: Communicator) -> int | None:
    """When the first send that fits no collective was seen; None: there is none."""
    cuts = communicator.cuts
    if not cuts.unread:
        return None
    left = [
        min(later)
        for edge, at in zip(cuts.ring.edges, cuts.state.positions, strict=True)
        for stream, number in zip(edge.streams, at, strict=True)
        if (later := [s.message.first_ns for n, s in stream.sends.items() if n >= number])
    ]
    return min(left, default=None)


def _channel_lost(cut: Cut, communicator: Communicator) -> bool:
    """A connection that has no part in it lost sends, or holds some that fit nowhere."""
    for edge, at, names, schedule in zip(
        communicator.ring.edges, cut.starts, cut.channels, cut.schedules, strict=True
    ):
        for stream, number, channel in zip(edge.streams, at, names, strict=True):
            idle = channel is None or not schedule[channel]
            later = stream.columns.seen_from(number)
            gaps = later < stream.stop - number
            if idle and later and (gaps or communicator.cuts.unread):
                return True
    return False


def assumptions(cut: Cut, communicator: Communicator) -> list[Finding]:
    """What no byte seen could have contradicted, and what other readings would change."""
    assumed: list[Finding] = []
    reduces = cut.op.kind is CollectiveKind.ALL_REDUCE
    if cut.op.from_wire and cut.op.protocol is not Protocol.SIMPLE:
        assumed.append(open_range(cut, communicator.ring))
    assumed += [cut.op.end] if cut.op.end else []
    if not cut.op.licensed and not reduces and not cut.op.meaning:
        assumed.append(KIND_FROM_SIZES(cut.op.kind))
    unsized = not cut.op.licensed and cut.op.protocol is not Protocol.SIMPLE
    if cut.op.meaning == GATHERED and unsized:
        assumed.append(open_range(cut, communicator.ring))
    if cut.op.meaning == SCATTERED and communicator.ring.ranks == 2 and not cut.op.licensed:
        assumed.append(SCATTERED_NOT_GATHERED())
    ring = communicator.ring
    assumed += ring.by_gpu if reduces else ()
    found = communicator.cuts.found
    # What looks like a count of parameters alone is no start-up.
    named = any(other.op.licensed and other.op.meaning != COUNT for other in found)
    around = reduces or not any(other.op.kind is CollectiveKind.ALL_REDUCE for other in found)
    if reduces and not named and _may_be_two(cut, communicator):
        assumed.append(ONE_ALL_REDUCE())
    if around and not ring.closed and not named:
        assumed.append(FEWEST_RANKS(ring.ranks))
    for rival in communicator.rivals if reduces else ():
        other = rival.ring
        if other.ranks != ring.ranks:
            assumed.append(OTHER_RANKS(ranks=ring.ranks, others=other.ranks))
        elif other.extra_sends != ring.extra_sends:
            assumed.append(RING_STEPS())
    if channels_open(cut, communicator):
        assumed.append(ring.order)
    return list(dict.fromkeys(assumed))


def _may_be_two(cut: Cut, communicator: Communicator) -> bool:
    """Of two ranks: what each sends first is as large as what it sends then, and as what the other
    one sends."""
    if communicator.ring.ranks != 2 or cut.op.licensed:
        return False
    sizes = {
        tuple(send.wire_bytes for send in channel)
        for schedule in cut.schedules
        for channel in schedule
        if channel
    }
    return len(sizes) == 1 and all(one[: len(one) // 2] == one[len(one) // 2 :] for one in sizes)


def _seen_whole(cut: Cut, communicator: Communicator) -> bool:
    """The same collective was seen elsewhere with all its sends."""
    return any(c.op == cut.op and not c.lost for c in communicator.cuts.found)


def _kind_told(cut: Cut, communicator: Communicator) -> bool:
    """Broadcasts of just the sizes that were seen, in just this order, are out of the question on
    every connection: far more was seen than lost. An empty send tells more than any other, no
    broadcast is empty."""
    sends: dict[int, list[tuple[Send, bool]]] = {}
    for stream, number, send in cut.sends(communicator.ring):
        sends.setdefault(id(stream), []).append((send, number in stream.sends))
    full = 0
    for of in sends.values():
        full += sum(seen and bool(send.wire_bytes) for send, seen in of)
        empty = [seen for send, seen in of if not send.wire_bytes]
        if empty and not any(empty):
            return False
    return _seen_whole(cut, communicator) or (full >= MANY_SENDS and cut.lost * 2 <= cut.matched)


def _clean(communicator: Communicator) -> bool:
    """Both directions from their start, and not one send lost or left unread."""
    cuts = communicator.cuts
    return (
        not cuts.unread
        and len(cuts.ring.edges) > 1
        and not any(cut.lost or cut.doubt for cut in cuts.found)
        and cuts.ring.from_start
    )


def loses(communicator: Communicator) -> bool:
    """Sends were lost, or fit nothing: what may come at any place may be a part of something."""
    cuts = communicator.cuts
    return cuts.unread > 0 or any(cut.lost or cut.doubt for cut in cuts.found)


def _only_total(cut: Cut, communicator: Communicator) -> bool:
    """No other size fits the sends that were seen, ends of the last line aside."""
    ring = communicator.ring
    if cut.op.tree:
        return False
    edges = []
    for edge, at, names, schedule in zip(
        ring.edges, cut.starts, cut.channels, cut.schedules, strict=True
    ):
        if edge.receiver is not None:
            continue
        flows = []
        for stream, number, channel in zip(edge.streams, at, names, strict=True):
            count = len(schedule[channel]) if channel is not None else 0
            seen = [stream.sends.get(number + i) for i in range(count)]
            flows.append(tuple(None if s is None else s.wire_bytes for s in seen))
        edges.append(EdgeSizes(sender=edge.writers, flows=tuple(flows)))
    setting = CollectiveSetting(
        ranks=ring.ranks,
        channels=ring.channels,
        protocol=cut.op.protocol,
        extra_sends=ring.extra_sends,
    )
    try:
        fits = totals_fitting(edges, setting, eras=cut.rules)
    except ValueError:
        return False
    slack = LINE_BYTES if cut.op.protocol is Protocol.LL else 1
    return bool(fits) and all(abs(f.total_bytes - cut.op.work_bytes) < slack for f in fits)
