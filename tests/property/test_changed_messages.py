"""Messages as no NCCL sends them, or of which some were lost: connections are made of them without
an error, and a loss gives no send another number."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.netib import Options, generate

from flowcheck.plane.mirror_merge.capture_file_reader import CaptureContents, read_capture_files
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.traffic.observed_messages import ObservedMessage

SHAPES = ((61, 30), (61,), (20, 61), (20,))
JOBS = {
    "ll": Options(shapes=SHAPES, ranks=3, steps=3),
    "simple": Options(shapes=SHAPES, protocol="Simple", version=(2, 26), channels=2, steps=3),
    "ll128": Options(shapes=SHAPES, ranks=3, protocol="LL128", version=(2, 23), steps=3),
    "pieces": Options(shapes=SHAPES, ranks=3, version=(2, 19), qps=3, mtu=512, steps=3),
    "pieces closed apart": Options(
        shapes=SHAPES, version=(2, 19), qps=2, adaptive=True, protocol="Simple", steps=3
    ),
    "turns": Options(shapes=SHAPES, ranks=3, version=(2, 23), qps=2, steps=3),
    "writes": Options(
        shapes=((70, 90), (70,)), protocol="Simple", version=(2, 23), adaptive=True, pieces=True,
        adaptive_over=2048, steps=3,
    ),
    "grouped": Options(shapes=SHAPES, version=(2, 30), pipeline_bytes=90000, grouped=3, steps=3),
    "trees": Options(
        shapes=SHAPES, ranks=4, version=(2, 23), tree_below=4096, mirrored=(1,), steps=3
    ),
}  # fmt: skip
Change = Callable[[random.Random, list[ObservedMessage]], object]


def lost(dice: random.Random, messages: list[ObservedMessage]) -> None:
    del messages[dice.randrange(len(messages))]


def beginning_lost(dice: random.Random, messages: list[ObservedMessage]) -> None:
    """As a merge has a message whose first packet nobody saw."""
    at = dice.randrange(len(messages))
    one = messages[at]
    size = min(one.wire_bytes, 512)
    if one.immediate is not None and size:
        payload = one.payload.copy()
        payload[:size] = 0
        messages[at] = replace(
            one, va=None, rkey=None, length_inferred=True, payload=payload, missing=((0, size),)
        )


def part_lost(dice: random.Random, messages: list[ObservedMessage]) -> None:
    at = dice.randrange(len(messages))
    one = messages[at]
    if one.wire_bytes and not one.missing:
        start = dice.randrange(one.wire_bytes)
        stop = dice.randint(start + 1, one.wire_bytes)
        payload = one.payload.copy()
        payload[start:stop] = 0
        messages[at] = replace(one, payload=payload, missing=((start, stop),))


def of_another_key(dice: random.Random, messages: list[ObservedMessage]) -> None:
    """Which is equal, and not the same object."""
    at = dice.randrange(len(messages))
    messages[at] = replace(messages[at], flow=replace(messages[at].flow))


def field(name: str, value: Callable[[random.Random], object]) -> Change:
    def change(dice: random.Random, messages: list[ObservedMessage]) -> None:
        at = dice.randrange(len(messages))
        messages[at] = replace(messages[at], **{name: value(dice)})  # type: ignore[arg-type]

    return change


def resized(dice: random.Random, messages: list[ObservedMessage]) -> None:
    at = dice.randrange(len(messages))
    size = dice.choice((0, 4, 8, 12, 16, 2048, messages[at].wire_bytes + 16))
    payload = np.frombuffer(dice.randbytes(size), np.uint8)
    messages[at] = replace(messages[at], wire_bytes=size, payload=payload, missing=())


def moved(dice: random.Random, messages: list[ObservedMessage]) -> None:
    """To another flow, which may be of the other direction."""
    at = dice.randrange(len(messages))
    messages[at] = replace(messages[at], flow=dice.choice(messages).flow)


def doubted(dice: random.Random, messages: list[ObservedMessage]) -> None:
    at = dice.randrange(len(messages))
    if messages[at].wire_bytes:
        messages[at] = replace(messages[at], conflicts=((0, min(4, messages[at].wire_bytes)),))


LOSSES: Sequence[Change] = (lost, lost, beginning_lost, part_lost, of_another_key)
CHANGES: Sequence[Change] = (
    *LOSSES, resized, moved, doubted,
    field("immediate", lambda dice: dice.choice((None, 0, 1, 1 << 31, dice.getrandbits(32)))),
    field("va", lambda dice: dice.choice((None, 0, dice.getrandbits(64)))),
    field("rkey", lambda dice: dice.choice((None, 0, dice.getrandbits(32)))),
    field("first_psn", lambda dice: (1 << 32) + dice.randrange(1 << 24)),
    field("packets", lambda dice: dice.randrange(1, 5)),
    field("first_ns", lambda dice: dice.getrandbits(62)),
)  # fmt: skip


ROUNDS = 25


@pytest.fixture(scope="module", params=JOBS)
def captured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CaptureContents:
    made = generate(JOBS[request.param], tmp_path_factory.mktemp("captured"))
    return read_capture_files(made.files)


def _changed(
    dice: random.Random, seen: CaptureContents, changes: Sequence[Change]
) -> list[ObservedMessage]:
    messages = list(seen.messages)
    for _ in range(dice.choice((1, 2, 20))):
        dice.choice(changes)(dice, messages)
    if dice.random() < 0.3:  # a capture that begins amid the job
        del messages[: dice.randrange(len(messages))]
    return messages


def test_any_messages_become_connections(captured: CaptureContents) -> None:
    dice = random.Random(len(captured.messages))
    for _ in range(ROUNDS):
        messages = _changed(dice, captured, CHANGES)
        found = sort_flows(captured.flows, messages)
        assert len(found.readings) == len(captured.flows)
        for stream in found.streams:
            numbers = list(stream.sends)
            assert numbers == sorted(set(numbers)) and numbers[0] >= 0
            assert stream.columns.first == numbers[0]


def test_a_loss_changes_no_number_that_is_told(captured: CaptureContents) -> None:
    """What a send is called where all was seen is the truth; where a flow says that it guessed, or
    that nothing tells where it began, another number may stand there."""
    told = {
        (stream.key, stream.pooled, send.message.va, send.message.first_ns): number
        for stream in sort_flows(captured.flows, captured.messages).streams
        for number, send in stream.sends.items()
    }
    dice = random.Random(len(captured.messages))
    compared = 0
    for _ in range(ROUNDS):
        messages = _changed(dice, captured, LOSSES)
        for stream in sort_flows(captured.flows, messages).streams:
            if not stream.from_start or stream.problems:
                continue
            for number, send in stream.sends.items():
                name = (stream.key, stream.pooled, send.message.va, send.message.first_ns)
                if send.message.va and name in told:
                    assert told[name] == number
                    compared += 1
    assert compared
