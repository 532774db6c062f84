"""Where a growing stream is cut to be read: always a beginning of it, at a pause."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage
from flowcheck.wire.traffic.stream_boundaries import READ_SHARE_LEAST, up_to_pause

FLOW = FlowKey(source="10.0.0.1", destination="10.0.0.2", dest_qp=7, incarnation=0)


def message_at(order: int, at_ns: int) -> ObservedMessage:
    return ObservedMessage(
        flow=FLOW, first_psn=order, packets=1, number=order, psn_counted=True, va=None, rkey=None,
        immediate=None, wire_bytes=0, length_inferred=False, line_flag=None,
        payload=np.zeros(0, np.uint8), missing=(), conflicts=(), first_ns=at_ns, order=order,
    )  # fmt: skip


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60), st.randoms())
def test_a_beginning_of_at_least_half_that_ends_at_the_last_long_pause(
    pauses_ns: list[int], random: object
) -> None:
    at, messages = 0, []
    for order, pause_ns in enumerate(pauses_ns, 1):
        at += pause_ns
        messages.append(message_at(order, at))
    shuffled = sorted(messages, key=lambda _: random.random())  # type: ignore[attr-defined]
    found = up_to_pause(shuffled)
    assert found == messages[: len(found)]
    assert len(found) >= max(1, int(len(messages) * READ_SHARE_LEAST))
    later = pauses_ns[max(1, int(len(messages) * READ_SHARE_LEAST)) :]
    if len(found) < len(messages):
        behind = pauses_ns[len(found)]
        assert 2 * behind >= max(later)
        assert all(2 * pause_ns < max(later) for pause_ns in pauses_ns[len(found) + 1 :])
    else:
        assert max(later, default=0) == 0
