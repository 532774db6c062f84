"""The order of channels by numbers, buffers and first use; and when a search stops by the clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from flowcheck.findings.catalog.connections import (
    CHANNEL_ORDER_OPEN,
    CHANNELS_BY_BUFFERS,
    CHANNELS_BY_NUMBER,
    CHANNELS_BY_USE,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.learn.flows.channels import in_order
from flowcheck.wire.learn.flows.foreign import of_another_protocol
from flowcheck.wire.learn.flows.groups import Group
from flowcheck.wire.learn.flows.port_orders import by_turns
from flowcheck.wire.learn.flows.streams import NOT_SEEN

INTO, OUT = ("a", "b"), ("b", "c")


def connection(number: int, peer: int, used: int, va: int, content: int) -> Any:
    """One that sent one message: numbers at both ends, when, to where, and what."""
    payload = np.random.default_rng(content).integers(1, 256, 512).astype(np.uint8)
    message = SimpleNamespace(time=(used, used), va=va, missing=(), payload=payload)
    return SimpleNamespace(
        key=SimpleNamespace(dest_qp=number),
        peer=SimpleNamespace(dest_qp=peer),
        sends={0: SimpleNamespace(message=message, protocol=None)},
        columns=SimpleNamespace(
            wire_bytes=np.array([512]), times_ns=np.array([used]), orders=np.array([used])
        ),
        marks={},
    )


def order(*rows: list[Any]) -> tuple[list[list[int]], Finding]:
    """([link][place] numbers, what they rest on)."""
    found, rests = in_order(dict(zip((INTO, OUT), rows, strict=True)))
    return [[s.key.dest_qp for s in found[link]] for link in (INTO, OUT)], rests


def test_numbers_of_both_ends_that_agree_are_believed() -> None:
    into = [connection(7, 30, 1, 0, 1), connection(5, 20, 2, 0, 2), connection(6, 25, 3, 0, 3)]
    out = [connection(9, 60, 1, 0, 1), connection(4, 40, 2, 0, 2), connection(8, 50, 3, 0, 3)]
    assert order(into, out) == ([[5, 6, 7], [4, 8, 9]], CHANNELS_BY_NUMBER())


def test_numbers_at_random_leave_first_use_then_buffers() -> None:
    into = [connection(7, 10, 1, 9, 1), connection(5, 20, 2, 8, 2), connection(6, 25, 3, 7, 3)]
    out = [connection(4, 60, 1, 5, 1), connection(9, 40, 2, 4, 2), connection(8, 50, 3, 3, 3)]
    assert order(into, out) == ([[7, 5, 6], [4, 9, 8]], CHANNELS_BY_USE())
    out = [connection(4, 60, 3, 5, 1), connection(9, 40, 2, 4, 2), connection(8, 50, 1, 3, 3)]
    assert order(into, out) == ([[6, 5, 7], [8, 9, 4]], CHANNELS_BY_BUFFERS())


def test_ports_by_turns_are_ordered_by_use_and_a_port_s_own_by_number() -> None:
    """Channels 0 to 3 lie on the ports 2, 1, 2, 1, whose numbers are not of one count; behind
    the first, which small collectives use alone, they began in an order of chance."""
    began = {12545: 1, 25784: 7, 12547: 9, 25786: 5}
    row = [connection(number, 0, used, 0, number) for number, used in began.items()]
    for one in row:
        port = 2 if one.key.dest_qp < 20000 else 1
        one.key.source, one.key.destination = f"10.0.0.{port}", f"10.0.1.{port}"
    made = by_turns(Group({INTO: tuple(row[::-1])}, {}, frozenset(), 0, CHANNELS_BY_NUMBER()))
    assert [one.key.dest_qp for one in made.links[INTO]] == list(began)
    assert made.order == CHANNELS_BY_USE()


def test_what_contradicts_itself_is_open_and_still_paired_by_what_is_forwarded() -> None:
    into = [connection(7, 10, 1, 9, 1), connection(5, 20, 2, 8, 2), connection(6, 25, 3, 7, 3)]
    out = [connection(4, 60, 3, 4, 1), connection(9, 40, 2, 5, 2), connection(8, 50, 1, 3, 3)]
    found, rests = order(into, out)
    assert rests == CHANNEL_ORDER_OPEN()
    beside = {7: 4, 5: 9, 6: 8}
    assert [beside[n] for n in found[0]] == found[1]


def test_a_connection_of_which_nothing_was_seen_is_in_no_order_of_first_use() -> None:
    into = [connection(7, 10, 1, 0, 1), connection(5, 20, 2, 0, 2)]
    out = [connection(4, 60, 1, 0, 3), connection(9, 40, 2, 0, 4)]
    assert order(into, out) == ([[7, 5], [4, 9]], CHANNELS_BY_USE())
    into[1].columns.wire_bytes[:] = NOT_SEEN
    assert order(into, out)[1] == CHANNEL_ORDER_OPEN()


def written(immediate: int, va: int) -> Any:
    payload = np.arange(256, dtype=np.uint8)
    return SimpleNamespace(
        immediate=immediate,
        va=va,
        wire_bytes=256,
        payload=payload,
        missing=(),
        length_inferred=False,
    )


def test_writes_with_other_immediates_than_sizes_to_no_slots_are_not_nccls() -> None:
    addresses = (0x1000, 0x2000, 0x7000)
    assert of_another_protocol([written(n, va) for n, va in enumerate(addresses)])
    assert not of_another_protocol([written(256, va) for va in addresses])
    # NCCL may number its receives in place of telling sizes; it still writes to slots.
    assert not of_another_protocol([written(n, n << 19) for n in range(3)])
