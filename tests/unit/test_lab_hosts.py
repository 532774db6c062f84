"""Hosts of several GPUs in the lab, on a network inside the process: what is inside a host never
crosses it, and what crosses it is what the same ring sends where every rank has a host."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.loop_ranks import Ranks, module

from flowcheck.lab.roce_backend.rank_places import Place, RankLayout, nic_of, rank_layout

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


def layout(hosts: int, gpus: int, nics: int) -> RankLayout:
    places = [(f"h{host}", nic_of(gpu, gpus, nics)) for host in range(hosts) for gpu in range(gpus)]
    return rank_layout([Place(*place) for place in places])


def around(first: list[int], second: list[int]) -> list[int]:
    """The ring through two hosts of eight, from rank 0 on."""
    whole = first + second
    return whole[whole.index(0) :] + whole[: whole.index(0)]


def test_rings_enter_and_leave_hosts_where_nccls_do() -> None:
    # As NCCL's log shows them on two nodes of eight H100 with a NIC each.
    eight = layout(2, 8, 8)
    assert eight.ring(0) == [0, 7, 6, 5, 4, 3, 2, 1, 9, 10, 11, 12, 13, 14, 15, 8]
    assert eight.ring(1) == around([1, 2, 3, 4, 5, 6, 7, 0], [8, 15, 14, 13, 12, 11, 10, 9])
    for channel in range(16):
        ring = eight.ring(channel)
        hops = {(a, b) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True) if a // 8 != b // 8}
        enters, leaves = channel % 8, channel % 8 ^ 1
        assert hops == {(leaves, 8 + leaves), (8 + enters, enters)}, channel
    # Four NICs: by the first GPU of one, and out by the next GPU on the same NIC.
    four = layout(2, 8, 4)
    for channel in range(8):
        ring, first = four.ring(channel), channel % 4 * 2
        hops = {(a, b) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True) if a // 8 != b // 8}
        assert hops == {(first + 1, 8 + first), (8 + first + 1, first)}, channel
    assert layout(3, 2, 1).ring(5) == [0, 1, 2, 3, 4, 5]
    assert layout(4, 1, 1).ring(3) == [0, 1, 2, 3]
    uneven = rank_layout([Place("a", 0), Place("b", 0), Place("a", 1)])
    assert (uneven.host_of, uneven.ring(1)) == ([0, 1, 0], [0, 2, 1])


def values(count: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(count, dtype=torch.float64).to(dtype)
    return torch.randint(0, 100, (count,)).to(dtype)


def along(ring: list[int], own: list[torch.Tensor], last: int) -> torch.Tensor:
    """The sum along a ring that ends at place `last`: each hop rounds."""
    total = own[ring[(last + 1) % len(ring)]].clone()
    for hop in range(2, len(ring) + 1):
        total = total + own[ring[(last + hop) % len(ring)]]
    return total


SHAPES = [(2, 2, 1), (2, 2, 2), (1, 3, 1), (3, 2, 2), (2, 4, 2), (2, 3, 1)]


@pytest.mark.parametrize("protocol", ["LL", "LL128", "SIMPLE"])
@pytest.mark.parametrize(("hosts", "gpus", "nics"), SHAPES)
def test_sums_and_copies_are_exact(
    start: Start, hosts: int, gpus: int, nics: int, protocol: str
) -> None:
    draw = random.Random(f"{hosts}{gpus}{nics}{protocol}")
    torch.manual_seed(hosts)
    ranks, told = hosts * gpus, layout(hosts, gpus, nics)
    for version in (21900, 22100, 22300, 22900):
        channels = draw.choice([1, 2, 4])
        rings = [told.ring(channel) for channel in range(channels)]
        world = start(*(ranks, channels, protocol, version), hosts=told.host_of, orders=rings)
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            count = draw.choice([1, 2, 7, 1000, draw.randrange(90_000)])
            own = [values(count, dtype) for _ in range(ranks)]
            made = [one.clone() for one in own]
            world.all("all_reduce", made, made, count)
            assert all(torch.equal(one, made[0]) for one in made)
            ends = [along(ring, own, place) == made[0] for ring in rings for place in range(ranks)]
            assert torch.stack(ends).any(dim=0).all(), (version, dtype, count)

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
                ends = [along(ring, blocks, ring.index(rank)) == made[rank] for ring in rings]
                assert torch.stack(ends).any(dim=0).all()


@pytest.mark.parametrize("protocol", ["LL", "LL128", "SIMPLE"])
@pytest.mark.parametrize(("hosts", "gpus", "nics"), [(2, 2, 2), (3, 2, 1), (2, 4, 1)])
def test_only_hops_between_hosts_cross_the_network_and_they_do_as_ever(
    start: Start, hosts: int, gpus: int, nics: int, protocol: str
) -> None:
    """Judged by the same ring with a host for each rank, whose messages other tests know."""
    ranks, told = hosts * gpus, layout(hosts, gpus, nics)
    rings = [told.ring(channel) for channel in range(2)]
    sent = []
    for places in (told.host_of, list(range(ranks))):
        world = start(ranks, 2, protocol, hosts=places, orders=rings)
        for kind in ("broadcast", "all_gather", "all_reduce", "reduce_scatter"):
            for count in (3, 70_000):
                taken = [torch.ones(count * ranks) for _ in range(ranks)]
                made = [torch.zeros(count * ranks) for _ in range(ranks)]
                world.all(kind, taken, made, count)
        sent.append(world.wire_messages())
    several, one_each = sent
    assert {rank // gpus for rank, _, _ in several} == set(range(hosts))
    assert {end for end in one_each if end[0] // gpus != end[1] // gpus} == set(several)
    for end, messages in several.items():
        found = [(one.bytes, one.capacity, one.flag) for one in messages]
        assert found == [(one.bytes, one.capacity, one.flag) for one in one_each[end]]


def test_sends_and_receives_inside_a_host_and_between_hosts(start: Start) -> None:
    world = start(4, 2, hosts=[0, 0, 1, 1])
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    for a, b in pairs:
        if a < b:
            world.pair(a, b)
    for count in (0, 1, 40_000, 300_000):
        data = {pair: torch.randn(count) for pair in pairs}
        made = {pair: torch.zeros(count) for pair in pairs}
        todo = [(b, "recv", made[a, b], a) for a, b in pairs]
        todo += [(a, "send", data[a, b], b) for a, b in pairs]
        tickets = [(one, world.submit(one, kind, t, t, count, peer)) for one, kind, t, peer in todo]
        for rank, ticket in tickets:
            world.wait(rank, ticket)
        assert all(torch.equal(made[pair], data[pair]) for pair in pairs)


def test_a_ring_that_is_none_is_refused(start: Start) -> None:
    for order in ([0, 1, 1], [1, 0, 2], [0, 1, 3]):
        with pytest.raises(OSError, match=r"channel 0"):
            start(3, 1, orders=[order])


def test_a_communicator_that_is_closed_gives_its_memory_back(start: Start, loop: Any) -> None:
    """Of a host's shared memory only the counts stay, until the processes end."""

    def kept() -> list[int]:
        paths = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        found = [path for path in paths if "memfd:flowcheck-lab" in str(path.readlink())]
        return [path.stat().st_blocks for path in found]

    before = len(kept())
    world = start(2, 1, "SIMPLE", hosts=[0, 0])
    tensor = [torch.ones(1 << 20), torch.ones(1 << 20)]
    world.all("all_reduce", tensor, tensor, 1 << 20)
    assert len(kept()) == before + 2 and sum(kept()) > 8192
    for comm in world.comms:
        loop.lib.fcl_comm_close(comm)
    world.comms.clear()
    assert sum(kept()) <= 2 * 8  # a page of counts for each connection, in blocks of 512
