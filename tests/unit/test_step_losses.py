"""What one edge of a ring never carries, by the schedule alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol
from flowcheck.wire.learn.cuts.candidates import Op, schedules_of
from flowcheck.wire.learn.cuts.match import Cut
from flowcheck.wire.learn.cuts.p2p import lacking
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow


def stream() -> Stream:
    key = FlowKey(source="a", destination="b", dest_qp=1)
    flow = ObservedFlow(
        key=key, udp_source_port=1, pmtu_bytes=1024, frames=0, payload_bytes=0, psn_missing=0,
        psn_duplicate=0, icrc_bad=0, acks=0, first_ns=0, last_ns=0,
    )  # fmt: skip
    return Stream(flow=flow, protocol=Protocol.LL128, sends={}, from_start=True, numbered_by=())


@given(
    st.integers(2, 16), st.integers(1, 60_000), st.sampled_from(Protocol), st.sampled_from(NcclEra),
    st.data(),
)  # fmt: skip
def test_ranges_lie_in_the_tensor_and_are_what_no_final_send_holds(
    ranks: int, words: int, protocol: Protocol, rule: NcclEra, data: st.DataObject
) -> None:
    edge = Edge(sender=data.draw(st.integers(0, ranks - 1)), streams=(stream(),))
    ring = Ring(ranks=ranks, edges=(edge,), channels=1, extra_sends=0, rules=(rule,), penalty=0)
    op = Op(kind=CollectiveKind.ALL_REDUCE, work_bytes=4 * words, protocol=protocol)
    schedules = schedules_of(op, rule, ring)
    cut = Cut(op, ((0,),), ((0,),), schedules, (rule,), 0, 0)
    final = np.zeros(op.work_bytes, np.bool_)
    for send in schedules[0][0]:
        if send.final:
            final[send.start_byte : send.start_byte + send.data_bytes] = True
    found = np.zeros(op.work_bytes, np.bool_)
    for start, stop in lacking(cut, ring, edge):
        assert 0 <= start < stop <= op.work_bytes
        found[start:stop] = True
    assert (found == ~final).all()
