"""Numbers of sends by the clear-to-send messages they answer, where a capture begins amid a run."""

from __future__ import annotations

from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.flows.numbering import Granted, number_sends
from flowcheck.wire.learn.flows.streams import SendSeen
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage

KEY = FlowKey(source="a", destination="b", dest_qp=1)
SLOTS = 4
"""Of Simple: a send takes two of NCCL's eight steps."""


def send(psn: int, number: int, time_ns: int) -> SendSeen:
    message = ObservedMessage(
        flow=KEY, first_psn=psn, packets=1, number=0, psn_counted=False, va=number % SLOTS * 1024 +
        64,
        rkey=1, immediate=512, wire_bytes=512, payload=None, first_ns=time_ns, order=time_ns,
    )  # fmt: skip
    return SendSeen(
        message=message, wire_bytes=512, first_psn=psn, stop_psn=psn + 1, closed=True, flag=None,
        protocol=Protocol.SIMPLE, number=0,
    )  # fmt: skip


def granted(numbers: range, lead_ns: int) -> Granted:
    """A receiver grants a slot again once what was written there was taken."""
    return {n: (n % SLOTS * 1024 + 64, (100 * n - lead_ns, 0)) for n in numbers}


def test_a_send_answers_no_clear_to_send_that_came_behind_it() -> None:
    """Four were granted before the capture began; the first one seen grants the slot of its first
    send anew."""
    first = 36
    sends = [send(900 + i, first + i, 100 * (first + i)) for i in range(12)]
    seen = granted(range(first + SLOTS, first + 14), lead_ns=350)
    numbered = number_sends(sends, seen, flags_count=False)
    assert list(numbered.sends) == list(range(first, first + 12))
    assert not numbered.from_start and not numbered.problems


def test_a_guess_is_no_start() -> None:
    sends = [send(900 + i, i, 100 * i) for i in range(12)]
    numbered = number_sends(sends, {}, flags_count=False)
    assert list(numbered.sends) == list(range(12)) and not numbered.from_start
    # All clear-to-send messages since the first: this is where the connection began.
    numbered = number_sends(sends, granted(range(14), lead_ns=350), flags_count=False)
    assert list(numbered.sends) == list(range(12)) and numbered.from_start
