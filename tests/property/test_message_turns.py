"""Queue pairs of one connection, met amid a run: in the right order, or in none."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flowcheck.findings.catalog.midstream_jobs import TURNS_OPEN
from flowcheck.wire.learn.jobs.late.turns import in_turn
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage


def message(nth: int, time_ns: int, turn: int) -> ObservedMessage:
    flow = FlowKey(source="a", destination="b", dest_qp=turn)
    return ObservedMessage(
        flow=flow, first_psn=nth, packets=1, number=nth, psn_counted=True, va=None, rkey=None,
        immediate=0, wire_bytes=64, payload=None, first_ns=time_ns, order=time_ns,
    )  # fmt: skip


@given(
    turns=st.integers(1, 8),
    begins=st.lists(st.integers(0, 30), min_size=8, max_size=8),
    jitter=st.lists(st.integers(0, 60), min_size=200, max_size=200),
    least=st.sampled_from([0, 9, 30, 60]),
)
@settings(max_examples=100, deadline=None)
def test_what_is_put_in_order_is_as_it_was_sent(
    turns: int, begins: list[int], jitter: list[int], least: int
) -> None:
    """`first_psn` is the number that a message was sent as. Sends are 10 ns apart and may begin
    later than they were posted; of each queue pair the mirror lacks what came before an instant."""
    of: list[list[ObservedMessage]] = [[] for _ in range(turns)]
    latest = [0] * turns
    for nth in range(200):
        turn = (nth + begins[7]) % turns
        latest[turn] = max(latest[turn] + 1, 10 * nth + min(jitter[nth], least))
        if latest[turn] >= 20 * begins[turn]:
            of[turn].append(message(nth, latest[turn], turn))
    found, why = in_turn(of)
    if found is None:
        assert least and turns > 1 and why == TURNS_OPEN()
        return
    numbers = [one.first_psn for one in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len(numbers) >= 200 - 62 - 2 * turns
