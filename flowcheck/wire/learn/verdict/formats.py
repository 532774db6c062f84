"""In which forms of NCCL's transport a stream was written, told from the stream alone."""

from __future__ import annotations

from collections.abc import Iterator

from flowcheck.findings.catalog.nccl_transport import (
    ADAPTIVE_ROUTING,
    BIG_ENDIAN_SIZES,
    CLEAR_TO_SEND_LAYOUT,
    GROUPED_RECEIVES,
    LITTLE_ENDIAN_SIZES,
    MESSAGES_SPLIT,
    REGISTERED_BUFFERS,
    SPEED_UPDATES,
    WHOLE_MESSAGES_IN_TURN,
    WRITES_IN_PIECES,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives import nccl_wire_format
from flowcheck.wire.learn.flows.roles import Sorted
from flowcheck.wire.learn.flows.streams import Stream

IMMEDIATES = {"little": LITTLE_ENDIAN_SIZES, "big": BIG_ENDIAN_SIZES}


def told(flows: Sorted) -> tuple[Finding, ...]:
    """One finding for each."""
    return tuple(dict.fromkeys(_told(flows)))


def _told(flows: Sorted) -> Iterator[Finding]:
    for layout in dict.fromkeys(grant.layout for grant in flows.grants):
        yield CLEAR_TO_SEND_LAYOUT(layout)
    orders = set.intersection(*found) if (found := list(_orders(flows))) else set()
    if len(orders) == 1:
        yield IMMEDIATES[orders.pop()]()
    grouped = [g.flow.key for g in flows.grants if g.most_receives > 1]
    if adaptive := sum(_adaptive(s) for s in flows.streams if s.peer not in grouped):
        yield ADAPTIVE_ROUTING(adaptive)
    if flows.in_pieces:
        yield WRITES_IN_PIECES(flows.in_pieces)
    most = max((grant.most_receives for grant in flows.grants), default=1)
    if most > 1:
        yield GROUPED_RECEIVES(most)
    if updates := sum(grant.speed_updates for grant in flows.grants):
        yield SPEED_UPDATES(updates)
    if registered := sum(_registered(flows, stream) for stream in flows.streams):
        yield REGISTERED_BUFFERS(registered)
    for stream in flows.streams:
        if len(stream.queue_pairs) > 1:
            entry = MESSAGES_SPLIT if stream.split else WHOLE_MESSAGES_IN_TURN
            yield entry(len(stream.queue_pairs))


def _orders(flows: Sorted) -> Iterator[set[str]]:
    """Of each immediate that tells one."""
    for word, size in {one for stream in flows.streams for one in stream.stated}:
        if fits := set(nccl_wire_format.immediate_orders(word, size)):
            yield fits


def _adaptive(stream: Stream) -> bool:
    return not stream.one_write_each and any(
        send.wire_bytes
        and send.closed
        and send.message.immediate is None
        and send.stop_psn == send.message.first_psn + send.message.packets + 1
        for send in stream.sends.values()
    )


def _registered(flows: Sorted, stream: Stream) -> bool:
    """Some receives are of just the size of what was sent, and of no slot's."""
    grant = next((g for g in flows.grants if g.flow.key == stream.peer), None)
    if grant is None:
        return False
    if all(map(nccl_wire_format.protocol_of_capacity, grant.capacities_bytes)):
        return False
    return any(
        send.wire_bytes
        and (size := grant.capacity_of.get(number)) == send.wire_bytes
        and nccl_wire_format.protocol_of_capacity(size) is None
        for number, send in stream.sends.items()
    )
