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

from flowcheck.lab.roce_backend.tensor_memory import TYPES

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
