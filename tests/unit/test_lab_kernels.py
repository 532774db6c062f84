"""The lab's collectives on a network inside the process: sums in ring order, the messages of real
captures (2 ranks, NCCL 2.19, LL) and of worked examples of NCCL's own partition arithmetic."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.loop_ranks import PROTOCOLS, Ranks, module

from flowcheck.lab.trainer.memory import TYPES

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


def values(count: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(count, dtype=torch.float64).to(dtype)
    return torch.randint(0, 100, (count,)).to(dtype)


def in_ring_order(own: list[torch.Tensor], finisher: int) -> torch.Tensor:
    """The sum as it is made when rank `finisher` is the last to add: each hop rounds."""
    total = own[(finisher + 1) % len(own)].clone()
    for hop in range(2, len(own) + 1):
        total = total + own[(finisher + hop) % len(own)]
    return total


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_sums_are_made_in_ring_order_and_copies_are_exact(
    start: Start, ranks: int, protocol: str
) -> None:
    draw = random.Random(f"{ranks}{protocol}")
    torch.manual_seed(ranks)
    for version in (21900, 22000, 22200, 22300, 22600, 22900):
        world = start(ranks, draw.choice([1, 2, 4]), protocol, version)
        for dtype in TYPES:
            count = draw.choice([0, 1, 2, 7, 1000, 5000, draw.randrange(60_000)])
            own = [values(count, dtype) for _ in range(ranks)]
            made = [one.clone() for one in own]
            world.all("all_reduce", made, made, count)
            assert all(torch.equal(one, made[0]) for one in made)
            orders = [in_ring_order(own, rank) == made[0] for rank in range(ranks)]
            assert torch.stack(orders).any(dim=0).all(), (version, dtype, count)

            root = draw.randrange(ranks)
            made = [one.clone() for one in own]
            world.all("broadcast", made, made, count, root)
            assert all(torch.equal(one, own[root]) for one in made)

            gathered = [torch.zeros(ranks * count, dtype=dtype) for _ in range(ranks)]
            world.all("all_gather", own, gathered, count)
            assert all(torch.equal(one, torch.cat(own)) for one in gathered)

            whole = [values(ranks * count, dtype) for _ in range(ranks)]
            made = [torch.zeros(count, dtype=dtype) for _ in range(ranks)]
            world.all("reduce_scatter", whole, made, count)
            for rank in range(ranks):
                blocks = [one[rank * count : (rank + 1) * count] for one in whole]
                assert torch.equal(made[rank], in_ring_order(blocks, rank))


def test_each_chunk_is_finished_by_the_rank_of_its_number(start: Start) -> None:
    count, ranks = 10_000, 3
    own = [torch.randn(count) for _ in range(ranks)]
    made = [one.clone() for one in own]
    start(ranks, 1, "LL").all("all_reduce", made, made, count)
    chunk = 3336  # ceil(10000 / 3) rounded up to 16 bytes of fp32
    for rank in range(ranks):
        cut = slice(rank * chunk, min(count, (rank + 1) * chunk))
        assert torch.equal(made[0][cut], in_ring_order([one[cut] for one in own], rank))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_sums_and_products_are_rounded_as_torch_rounds(
    start: Start, dtype: torch.dtype
) -> None:
    world = start(2, 1, "SIMPLE")
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    for turn in range(4):
        other = torch.zeros_like(every) if turn == 0 else every[torch.randperm(1 << 16)]
        for reduction, add in (("sum", torch.add), ("prod", torch.mul)):
            made = [every.clone(), other.clone()]
            world.all("all_reduce", made, made, 1 << 16, reduction=reduction)
            right = add(every, other)
            number = ~right.isnan()
            assert torch.equal(made[0].isnan(), right.isnan())
            # As bits: the sign of a zero counts.
            assert torch.equal(made[0].view(torch.int16)[number], right.view(torch.int16)[number])


@pytest.mark.parametrize("dtype", TYPES)
def test_averages_minima_and_maxima(start: Start, dtype: torch.dtype) -> None:
    ranks, count = 3, 3001
    world = start(ranks, 2, "ANY")
    own = [values(count, dtype) for _ in range(ranks)]
    for reduction in ("avg", "min", "max"):
        made = [one.clone() for one in own]
        world.all("all_reduce", made, made, count, reduction=reduction)
        if reduction == "min":
            assert torch.equal(made[0], torch.stack(own).amin(0))
        elif reduction == "max":
            assert torch.equal(made[0], torch.stack(own).amax(0))
        elif dtype.is_floating_point:
            scaled = [one * torch.tensor(1 / ranks, dtype=torch.float64).to(dtype) for one in own]
            orders = [in_ring_order(scaled, rank) == made[0] for rank in range(ranks)]
            assert torch.stack(orders).any(dim=0).all()
        else:
            total = in_ring_order(own, 0)
            assert torch.equal(made[0], torch.div(total, ranks, rounding_mode="trunc"))


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


@pytest.mark.parametrize("count", [0, 1, 100, 40_000, 300_000])
def test_sends_and_receives_run_beside_each_other(start: Start, count: int) -> None:
    world = start(3, 2)
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    for a, b in pairs:
        if a < b:
            world.pair(a, b)
    data = {pair: torch.randn(count) for pair in pairs}
    made = {pair: torch.zeros(count) for pair in pairs}
    ones = [torch.ones(5) for _ in range(3)]
    # Receives first, then a collective, then sends: none waits for another queue.
    tickets = [(b, world.submit(b, "recv", made[a, b], made[a, b], count, a)) for a, b in pairs]
    world.all("all_reduce", ones, ones, 5)
    tickets += [(a, world.submit(a, "send", data[a, b], data[a, b], count, b)) for a, b in pairs]
    for rank, ticket in tickets:
        world.wait(rank, ticket)
    assert all(torch.equal(made[pair], data[pair]) for pair in pairs)
    assert ones[2][0] == 3


def test_a_missing_peer_ends_in_a_time_out_for_all_that_is_queued(start: Start) -> None:
    world = start(2)
    tensor = torch.ones(10)
    tickets = [world.submit(0, "all_reduce", tensor, tensor, 10) for _ in range(2)]
    for ticket in tickets:
        with pytest.raises(OSError, match="longer than its time-out"):
            world.wait(0, ticket, timeout_ms=100)
    with pytest.raises(OSError, match="longer than its time-out"):
        world.submit(0, "all_reduce", tensor, tensor, 10)


def test_a_peer_with_another_operation_is_told_apart(start: Start) -> None:
    world = start(2, 1, "LL")
    tensors = torch.ones(10), torch.ones(20)
    tickets = [
        world.submit(rank, "all_reduce", tensor, tensor, tensor.numel())
        for rank, tensor in enumerate(tensors)
    ]
    for rank, ticket in enumerate(tickets):
        with pytest.raises(OSError, match="the peer runs another operation"):
            world.wait(rank, ticket)


@pytest.mark.parametrize(
    ("kind", "count", "peer"),
    [
        ("broadcast", 10, 7),
        ("send", 10, 0),
        ("recv", 10, 5),
        ("send", 10, 1),
        ("all_reduce", 2**62, 0),
    ],
)
def test_what_is_no_operation_is_refused(start: Start, kind: str, count: int, peer: int) -> None:
    world = start(2)
    tensor = torch.ones(10)
    with pytest.raises(OSError):
        world.submit(0, kind, tensor, tensor, count, peer)
