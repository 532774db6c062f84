"""The schedule against the lab's rings, which move real bytes and know no schedule."""

from __future__ import annotations

import warnings

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch

from support.learned import RULES

from flowcheck.lab.synthetic_traffic import ring_collectives
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.collectives.ring_schedule import all_reduce, broadcast

versions = st.sampled_from(sorted(RULES))
counts = st.one_of(st.integers(1, 4000), st.integers(1, 150_000))


@settings(max_examples=120, deadline=None)
@given(versions, st.integers(2, 8), st.integers(1, 8), counts, st.booleans())
def test_every_message_of_an_executed_all_reduce_is_the_scheduled_one(
    version: str, ranks: int, channels: int, count: int, extra: bool
) -> None:
    dice = np.random.default_rng(count)
    tensors = [dice.integers(0, 1 << 20, count, np.int32).tobytes() for _ in range(ranks)]
    result, sent = ring_collectives.all_reduce(
        tensors,
        version=version,
        channels=channels,
        add=ring_collectives.adder(torch.int32),
        extra_send=extra,
    )
    messages = list(sent)
    for sender in range(ranks):
        schedule = all_reduce(
            count * 4,
            sender=sender,
            extra_sends=int(extra),
            ranks=ranks,
            channels=channels,
            protocol=Protocol.LL,
            era=RULES[version],
        )
        for channel, sends in enumerate(schedule):
            seen = [m.data for m in messages if (m.channel, m.sender) == (channel, sender)]
            assert [len(data) for data in seen] == [send.data_bytes for send in sends]
            for data, send in zip(seen, sends, strict=True):
                if send.final:
                    assert data == result[send.start_byte : send.start_byte + send.data_bytes]


@settings(max_examples=120, deadline=None)
@given(versions, st.integers(2, 8), st.integers(1, 8), counts)
def test_every_byte_of_an_executed_broadcast_is_in_the_scheduled_message(
    version: str, ranks: int, channels: int, size: int
) -> None:
    content = np.random.default_rng(size).bytes(size)
    messages = list(ring_collectives.broadcast(content, ranks, channels, version))
    for sender in range(ranks):
        schedule = broadcast(
            size,
            sender=sender,
            ranks=ranks,
            channels=channels,
            protocol=Protocol.LL,
            era=RULES[version],
        )
        for channel, sends in enumerate(schedule):
            seen = [m.data for m in messages if (m.channel, m.sender) == (channel, sender)]
            due = [content[s.start_byte : s.start_byte + s.data_bytes] for s in sends]
            assert list(filter(None, seen)) == list(filter(None, due))
