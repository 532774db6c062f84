"""How many ranks share a node: what sizes leave, and what names of ranks tell."""

from __future__ import annotations

import random

import pytest

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol
from flowcheck.wire.collectives.ring_schedule import Send, collective
from flowcheck.wire.learn.cuts.sounding import ring_indices, writers
from flowcheck.wire.learn.flows.nodes import by_tags
from flowcheck.wire.learn.flows.streams import SendSeen, Stream
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, ObservedMessage


def stream_of(sends: tuple[Send, ...], protocol: Protocol) -> Stream:
    """A connection on which just these were seen."""
    key = FlowKey(source="a", destination="b", dest_qp=1)
    made = {}
    for number, send in enumerate(sends):
        message = ObservedMessage(
            flow=key, first_psn=number, packets=1, number=number, psn_counted=True, va=None,
            rkey=None,
            immediate=0, wire_bytes=send.wire_bytes, payload=None, first_ns=number, order=number,
        )  # fmt: skip
        made[number] = SendSeen(
            message=message, wire_bytes=send.wire_bytes, first_psn=number, stop_psn=number + 1,
            closed=True, flag=None, protocol=protocol, number=number,
        )  # fmt: skip
    flow = ObservedFlow(
        key=key, udp_source_port=1, pmtu_bytes=0, frames=0, payload_bytes=0, psn_missing=0,
        psn_duplicate=0, icrc_bad=0, acks=0, first_ns=0, last_ns=0,
    )  # fmt: skip
    return Stream(flow=flow, sends=made, protocol=protocol, from_start=True, numbered_by=())


@pytest.mark.parametrize("protocol", Protocol)
def test_sizes_leave_just_the_ranks_that_would_send_the_same(protocol: Protocol) -> None:
    draw = random.Random(3)
    for _ in range(12):
        ranks = draw.choice([2, 3, 4, 8, 16])
        size = 4 * draw.choice([ranks * 64, ranks * 480, draw.randrange(1, 90_000)])
        rule = draw.choice(list(NcclEra))

        def of(sender: int) -> tuple[Send, ...]:
            return collective(
                CollectiveKind.ALL_REDUCE,
                size,  # noqa: B023 - called within the turn
                sender=sender,
                ranks=ranks,  # noqa: B023
                channels=1,
                protocol=protocol,
                era=rule,  # noqa: B023
            )[0]

        sent = of(draw.randrange(ranks))
        alike = [
            r for r in range(ranks) if [s.wire_bytes for s in of(r)] == [s.wire_bytes for s in sent]
        ]
        bits, matched = writers(
            stream_of(sent, protocol), 0, of(0), CollectiveKind.ALL_REDUCE, protocol, ranks
        )
        assert ring_indices(bits) == alike and matched == len(sent)


def test_ranks_that_are_named_tell_a_node_and_whether_its_first_gpu_writes() -> None:
    assert by_tags([8, 12], ranks=16, gpus=4) == [8]
    assert by_tags([9, 13], ranks=16, gpus=4) == [9, 10, 11]
    assert by_tags([13, 1], ranks=16, gpus=4) == [13, 14, 15]
    assert by_tags([None, 3], ranks=4, gpus=2) == [1]
    assert by_tags([5], ranks=16, gpus=1) == [5]
    assert by_tags([1, 2], ranks=16, gpus=4) is None  # rank after rank on node after node
    assert by_tags([None], ranks=4, gpus=2) is None
