"""In which forms of NCCL's transport a stream was written, told from the stream alone."""

from __future__ import annotations

from collections.abc import Iterator

from flowcheck.findings.catalog.transport_forms import (
    ADAPTIVE_ROUTING,
    BIG_ENDIAN_SIZES,
    CLEAR_TO_SEND_LAYOUT,
    GROUPED_RECEIVES,
    LITTLE_ENDIAN_SIZES,
    MESSAGES_SPLIT,
    REGISTERED_BUFFERS,
    WHOLE_MESSAGES_IN_TURN,
    WRITES_IN_PIECES,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives import nccl_wire_format
from flowcheck.wire.learn.flows.roles import Grants, Sorted
from flowcheck.wire.learn.flows.streams import Stream

IMMEDIATES = {"little": LITTLE_ENDIAN_SIZES, "big": BIG_ENDIAN_SIZES}


def told(flows: Sorted) -> tuple[Finding, ...]:
    """One finding for each."""
    return tuple(dict.fromkeys(_told(flows)))


def _told(flows: Sorted) -> Iterator[Finding]:
    for layout in dict.fromkeys(one for grant in flows.grants for one in _layouts(grant)):
        yield CLEAR_TO_SEND_LAYOUT(layout)
    orders = set.intersection(*found) if (found := list(_orders(flows))) else set()
    if len(orders) == 1:
        yield IMMEDIATES[orders.pop()]()
    grouped = [g.flow.key for g in flows.grants if any(c.receives > 1 for c in g.by_index.values())]
    if adaptive := sum(_adaptive(s) for s in flows.streams if s.peer not in grouped):
        yield ADAPTIVE_ROUTING(adaptive)
    if flows.in_pieces:
        yield WRITES_IN_PIECES(flows.in_pieces)
    most = max((c.receives for g in flows.grants for c in g.by_index.values()), default=1)
    if most > 1:
        yield GROUPED_RECEIVES(most)
    if registered := sum(_registered(flows, stream) for stream in flows.streams):
        yield REGISTERED_BUFFERS(registered)
    for stream in flows.streams:
        if len(stream.queue_pairs) > 1:
            entry = MESSAGES_SPLIT if stream.split else WHOLE_MESSAGES_IN_TURN
            yield entry(len(stream.queue_pairs))


def _layouts(grant: Grants) -> dict[nccl_wire_format.CtsLayout, None]:
    return dict.fromkeys(cts.layout for cts in grant.by_index.values())


def _orders(flows: Sorted) -> Iterator[set[str]]:
    """Of each immediate that tells one."""
    for stream in flows.streams:
        for send in stream.sends.values():
            word = send.message.immediate
            fits = set(nccl_wire_format.immediate_orders(word, send.wire_bytes)) if word else set()
            if fits and not send.message.length_inferred:
                yield fits


def _adaptive(stream: Stream) -> bool:
    return any(
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
    return any(
        send.wire_bytes
        and (cts := grant.by_index.get(number)) is not None
        and cts.capacity_bytes == send.wire_bytes
        and nccl_wire_format.protocol_of_capacity(cts.capacity_bytes) is None
        for number, send in stream.sends.items()
    )
