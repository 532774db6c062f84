"""How the lab's kernels cut an operation into messages, against real captures and NCCL's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.loop_ranks import Ranks, module

MIB = 1 << 20
Start = Callable[..., Ranks]


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return module(Path(tmp_path_factory.mktemp("loop")))


@pytest.fixture
def start(loop: Any) -> Iterator[Start]:
    started: list[Ranks] = []

    def begin(*arguments: Any, **options: Any) -> Ranks:
        started.append(Ranks(loop, *arguments, **options))
        return started[-1]

    yield begin
    for ranks in started:
        ranks.close()


def test_messages_of_a_ddp_start_equal_the_real_capture(start: Start) -> None:
    """Linear(5000, 1) on 2 ranks, NCCL 2.19, one channel, as captured from ConnectX NICs: counts
    of parameters gathered, sizes and parameters broadcast, two all-reduces, bucket lists between.
    """
    world = start(2, 1, "LL", 21900)
    long, byte = torch.zeros(2, dtype=torch.int64), torch.zeros(20_000, dtype=torch.uint8)
    gradient = torch.zeros(5000)
    world.all("all_gather", [long[:1]] * 2, [long.clone(), long.clone()], 1)
    for size in (32, 20_000):
        world.all("broadcast", [byte, byte.clone()], [byte, byte.clone()], size)
    world.all("all_reduce", [gradient] * 2, [gradient.clone(), gradient.clone()], 5000)
    for size in (8, 8):
        world.all("broadcast", [byte, byte.clone()], [byte, byte.clone()], size)
    world.all("all_reduce", [gradient] * 2, [gradient.clone(), gradient.clone()], 5000)
    sent = world.sent()
    first = [16, 64, 40000, 15424, 24576, 16, 16, 15424, 24576]
    assert [one.bytes for one in sent[0, 0]] == first
    assert [one.bytes for one in sent[1, 0]] == [16, 24576, 15424, 24576, 15424]
    for messages in sent.values():
        base = messages[0].va
        assert base % (2 * MIB) == 0
        assert [one.flag for one in messages] == list(range(1, len(messages) + 1))
        assert [one.va - base for one in messages] == [i % 8 << 16 for i in range(len(messages))]
        assert {one.capacity for one in messages} == {65536}


def test_an_empty_chunk_is_sent_as_in_the_real_capture(start: Start) -> None:
    """5000 int32 on two channels: channel 1 has [2048, 4096) and nothing."""
    world = start(2, 2, "LL", 21900)
    own = [torch.arange(5000, dtype=torch.int32) % 10 for _ in range(2)]
    world.all("all_reduce", own, own, 5000)
    sizes = {end: [one.bytes for one in messages] for end, messages in world.sent().items()}
    assert sizes == {
        (0, 0): [7232, 16384],
        (0, 1): [0, 16384],
        (1, 0): [16384, 7232],
        (1, 1): [16384, 0],
    }
    assert torch.equal(own[0], 2 * (torch.arange(5000, dtype=torch.int32) % 10))


def test_parts_and_slices_of_a_simple_all_reduce(start: Start) -> None:
    """1 000 003 fp32 on two channels, NCCL 2.30: the worked example of the partition rules."""
    world = start(2, 2, "SIMPLE", 23000)
    own = [torch.zeros(1_000_003) for _ in range(2)]
    world.all("all_reduce", own, own, 1_000_003)
    sent = world.sent()
    assert [one.bytes for one in sent[1, 0]] == [503_808] * 4
    assert [one.bytes for one in sent[0, 1]] == [496_192, 496_188, 496_256, 496_144]
    offsets = [one.va % (2 * MIB) for one in sent[1, 0]]
    assert offsets == [at % (2 * MIB) for at in (0x530000, 0x630000, 0x730000, 0x830000)]
    assert {one.capacity for one in sent[1, 0]} == {MIB}


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        (22900, [65_536] * 15 + [16_963]),
        (22300, [63_488] * 15 + [47_683]),
        (22200, [62_500] + [62_504] * 14 + [62_447]),
    ],
)
def test_parts_of_sixteen_channels_by_release(start: Start, version: int, parts: list[int]) -> None:
    """Every chunk of a ring of 2 leaves a rank's channel once, so its bytes are the part's."""
    world = start(2, 16, "SIMPLE", version)
    own = [torch.zeros(1_000_003) for _ in range(2)]
    world.all("all_reduce", own, own, 1_000_003)
    sent = world.sent()
    assert [sum(one.bytes for one in sent[0, c]) // 4 for c in range(16)] == parts


def test_steps_are_shared_by_protocols_and_rounded_up_to_a_chunk(start: Start) -> None:
    world = start(2, 1, "ANY", 22900)
    small, large = torch.zeros(100), torch.zeros(MIB)
    for tensor in (small, small, small, large, small):
        made = [tensor.clone(), tensor.clone()]
        world.all("all_reduce", made, made, tensor.numel())
    messages = world.sent()[0, 0]
    base = messages[0].va
    slots = [(one.va - base) for one in messages]
    # Steps 0-5 are LL; Simple begins at 8 and has 4 messages of 2 steps; LL goes on at 16.
    assert slots[:6] == [i << 16 for i in range(6)]
    assert slots[6:10] == [0x530000 + i * MIB for i in range(4)]
    assert slots[10:] == [0, 1 << 16]
    assert [one.flag for one in messages[10:]] == [17, 18]
