"""NVLS trees in the lab, on a network inside the process: what they sum, in which order, and their
messages, by what is known of NCCL's partition and trees, written out here once more."""

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
NVLS_TREE = 2

TREES = {
    2: ({0: [1]}, {1: [0]}),
    3: ({0: [2], 2: [1]}, {1: [0], 0: [2]}),
    4: ({0: [2], 2: [1, 3]}, {3: [1], 1: [2, 0]}),
    5: ({0: [4], 4: [2], 2: [1, 3]}, {1: [0], 0: [3], 3: [2, 4]}),
    6: ({0: [4], 4: [2, 5], 2: [1, 3]}, {5: [1], 1: [3, 0], 3: [4, 2]}),
}
"""Hosts -> (children by host on even channels, on odd ones): NCCL's double binary tree."""


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return module(Path(tmp_path_factory.mktemp("loop")))


@pytest.fixture
def start(loop: Any) -> Iterator[Start]:
    started: list[Ranks] = []

    def begin(hosts: int, gpus: int, nics: int, channels: int, version: int) -> Ranks:
        told = layout(hosts, gpus, nics)
        heads = [[host * gpus + nic * gpus // nics for nic in range(nics)] for host in range(hosts)]
        world = Ranks(
            *(loop, hosts * gpus, channels, "ANY", version),
            hosts=told.host_of,
            orders=[told.ring(channel) for channel in range(channels)],
            heads=heads,
        )
        started.append(world)
        world.connect(NVLS_TREE)
        return world

    yield begin
    for ranks in started:
        ranks.close()


def layout(hosts: int, gpus: int, nics: int) -> RankLayout:
    places = [(f"h{host}", nic_of(gpu, gpus, nics)) for host in range(hosts) for gpu in range(gpus)]
    return rank_layout([Place(*place) for place in places])


# NCCL's partition, from its host code: parts of channels, then chunks of heads.


def up(a: int, b: int) -> int:
    return -(-a // b) * b


def parts(
    version: int, count: int, size: int, channels: int, weight: int = 2
) -> list[tuple[int, int]]:
    """[channel] (first element, elements), from 2.20 on; weight: traffic of a byte."""
    if version < 22200:
        share, found, first = up(-(-count * size // channels), 16), [], 0
        for _ in range(channels):
            elements = up(-(-min(share, (count - first) * size) // size), 4096 // size)
            found.append((first, min(elements, count - first)))
            first += found[-1][1]
        return found
    traffic = count * size * weight
    if version < 22300:
        cell, per_channel = 16, max(512, traffic // channels)
        low_cells = per_channel // (16 * weight)
    else:
        least = 16384 if version < 22900 else 32768
        traffic, cell = max(least, traffic), up(-(-least // weight), 16)
        per_channel = traffic // channels
        per_channel = max(least, per_channel) if version < 22900 else up(per_channel, 16)
        low_cells = -(-per_channel // (weight * cell))
    cells = -(-count * size // cell)
    each = min(cells, -(-per_channel // (weight * cell)))
    low = cells if channels == 1 else min(cells, low_cells)
    middle, high = divmod(cells - low, each)
    if (low > 0) + middle + (high > 0) > channels:
        middle = channels - 2
        each, over = divmod(cells - low, middle + 1)
        high = each + over
    whole = [low] + [each] * middle + ([high] if high else [])
    sizes = [one * (cell // size) for one in whole]
    sizes[-1] -= cells * (cell // size) - count
    found, first = [], 0
    for elements in sizes:
        if elements or found:
            found.append((first, elements))
        elif not found:
            found.append((0, 0))  # channel 0 is skipped
        first += elements
    return found + [(count, 0)] * (channels - len(found))


def chunk_of(version: int, bytes_shared: int, units: int, hosts: int) -> int:
    chunk = 131072 if version >= 22100 else 524288
    chunk = 65536 if hosts >= 4 else chunk
    for factor, most in ((32, 262144), (16, 131072), (4, 65536), (1, 32768)):
        if bytes_shared < factor * units * chunk and chunk > most:
            chunk = most
    return chunk // 512 * 512


def messages(
    version: int, count: int, size: int, channels: int, heads: int, hosts: int
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """{(channel, head): (first element, elements) of each message, the same up and down}."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    if version < 22000:
        chunk = chunk_of(version, count * size, channels * heads, hosts) // size
        for base in range(0, count, channels * heads * chunk):
            for unit in range(channels * heads):
                at = base + unit * chunk
                one = at, min(chunk, max(0, count - at))
                found.setdefault(divmod(unit, heads), []).append(one)
        return found
    for channel, (first, elements) in enumerate(parts(version, count, size, channels)):
        shared = elements * size, heads
        if version < 22200:
            shared = count * size, channels * heads
        chunk = chunk_of(version, *shared, hosts) // size
        for at in range(0, elements, heads * chunk):
            now, left = chunk, elements - at
            if left < heads * chunk:
                now = up(-(-left // heads), (16 if version >= 22200 else 4096) // size)
            for head in range(heads):
                one = first + at + head * now, max(0, min(now, left - head * now))
                found.setdefault((channel, head), []).append(one)
    return found


def test_the_partition_written_here_covers_each_element_once() -> None:
    draw = random.Random(5)
    for _ in range(300):
        version = draw.choice([21900, 22000, 22100, 22200, 22300, 22700, 22900, 23000])
        size, count = draw.choice([2, 4]), draw.choice([1, 5, 4096, draw.randrange(3_000_000)]) or 1
        channels, heads = draw.choice([1, 2, 4, 16]), draw.choice([1, 2, 3, 8])
        found = messages(version, count, size, channels, heads, draw.choice([2, 3, 4, 8]))
        spans = sorted(one for every in found.values() for one in every if one[1])
        ends = [first + elements for first, elements in spans]
        assert [first for first, _ in spans] == [0, *ends[:-1]] and ends[-1] == count


def test_the_partition_gives_nccls_examples() -> None:
    large = messages(23000, 6_553_600, 4, 16, 8, 2)
    assert {tuple(n * 4 for _, n in one) for one in large.values()} == {(65536, 65536, 65536, 8192)}
    odd = messages(23000, 1_000_003, 4, 16, 8, 2)
    assert {tuple(n * 4 for _, n in odd[c, h]) for c in range(15) for h in range(8)} == {(32768,)}
    assert [odd[15, head][0][1] * 4 for head in range(8)] == [8496] * 7 + [8380]


SHAPES = [(2, 2, 2, 2), (2, 4, 2, 4), (3, 2, 2, 3), (4, 2, 2, 2), (5, 2, 2, 2), (2, 3, 1, 2)]
VERSIONS = [21900, 22000, 22100, 22200, 22300, 22700, 22900, 23000]


@pytest.mark.parametrize(("hosts", "gpus", "nics", "channels"), [*SHAPES, (6, 3, 3, 4)])
def test_messages_are_those_of_nccl_on_the_edges_of_its_trees(
    start: Start, hosts: int, gpus: int, nics: int, channels: int
) -> None:
    draw, ranks = random.Random(hosts * gpus), hosts * gpus
    for version in draw.sample(VERSIONS, 4):
        world = start(hosts, gpus, nics, channels, version)
        for dtype in (torch.float32, torch.bfloat16):
            count = draw.choice([1, 1000, draw.randrange(400_000), 300_000])
            own = [torch.ones(count, dtype=dtype) for _ in range(ranks)]
            world.all("all_reduce", own, own, count)
            assert all(one.eq(ranks).all() for one in own)
            found = world.wire_messages()
            size = dtype.itemsize
            wanted = {}
            told = messages(version, count, size, channels, nics, hosts)
            for (channel, head), spans in told.items():
                for parent, children in TREES[hosts][channel % 2].items():
                    for child in children:
                        a, b = (host * gpus + head * gpus // nics for host in (parent, child))
                        wanted[a, b, channel] = wanted[b, a, channel] = [n * size for _, n in spans]
            wanted = {end: sizes for end, sizes in wanted.items() if sizes}
            assert {end: [one.bytes for one in every] for end, every in found.items()} == wanted
            every = [one for end in found.values() for one in end]
            assert {one.capacity for one in every} == {524288}
            assert max(one.bytes for one in every) <= 524288 // (1 if version < 22100 else 4)


def stated(own: list[torch.Tensor], hosts: int, gpus: int, head: int, tree: Any) -> torch.Tensor:
    """The sum in the order that the lab states: a head's own part, its host's others, then its
    children in the tree."""

    def of(host: int) -> torch.Tensor:
        first = host * gpus + head
        total = own[first].clone()
        for rank in range(host * gpus, (host + 1) * gpus):
            total = total if rank == first else total + own[rank]
        for child in sorted(tree.get(host, ())):
            total = total + of(child)
        return total

    (root,) = set(range(hosts)) - {child for children in tree.values() for child in children}
    return of(root)


@pytest.mark.parametrize(("hosts", "gpus", "nics", "channels"), SHAPES)
def test_all_ranks_have_the_bits_of_the_sum_in_the_stated_order(
    start: Start, hosts: int, gpus: int, nics: int, channels: int
) -> None:
    torch.manual_seed(hosts)
    draw, ranks = random.Random(gpus * hosts), hosts * gpus
    for version in draw.sample(VERSIONS, 3):
        world = start(hosts, gpus, nics, channels, version)
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            count = draw.choice([1, 7, 1000, draw.randrange(200_000)])
            own = [torch.randn(count, dtype=torch.float64).to(dtype) for _ in range(ranks)]
            made = [torch.zeros(count, dtype=dtype) for _ in range(ranks)]
            world.all("all_reduce", own, made, count)
            again = [one.clone() for one in own]
            world.all("all_reduce", again, again, count)
            for one in (*made, *again):
                assert torch.equal(one, made[0])
            told = messages(version, count, dtype.itemsize, channels, nics, hosts)
            for (channel, head), spans in told.items():
                place = head * gpus // nics
                whole = stated(own, hosts, gpus, place, TREES[hosts][channel % 2])
                for first, elements in spans:
                    cut = slice(first, first + elements)
                    assert torch.equal(made[0][cut], whole[cut]), (version, dtype, channel, head)


def test_what_nccl_does_not_sum_in_a_switch_goes_by_rings(start: Start) -> None:
    world = start(2, 2, 2, 2, 22900)
    slots = set()
    for dtype, reduction in (
        (torch.float32, "avg"),
        (torch.float32, "max"),
        (torch.int64, "prod"),
        (torch.uint8, "sum"),
    ):
        own = [torch.ones(900_000, dtype=dtype) for _ in range(4)]
        world.all("all_reduce", own, own, 900_000, reduction=reduction)
        every = [one for end in world.wire_messages().values() for one in end]
        slots |= {one.capacity for one in every}
    assert 524288 not in slots
    own = [torch.full((9,), rank) for rank in range(4)]
    world.all("all_reduce", own, own, 9, reduction="max")
    assert own[0].eq(3).all()
    every = [one for end in world.wire_messages().values() for one in end]
    assert {one.capacity for one in every} == {524288}


def test_a_ring_and_a_tree_over_one_pair_of_gpus_have_one_connection(start: Start) -> None:
    """Of two hosts with a NIC for each GPU every hop of a ring between hosts is an edge of a tree:
    slots go on where the other left them."""
    world = start(2, 2, 2, 2, 22900)
    large, small = [torch.ones(600_000) for _ in range(4)], [torch.ones(5) for _ in range(4)]
    hops: set[Any] = set()
    for _ in range(3):
        world.all("broadcast", small, small, 5)
        hops |= set(world.wire_messages())
        world.all("all_reduce", large, large, 600_000)
        hops |= set(world.wire_messages())
        assert all(torch.equal(one, large[0]) for one in large)
    # A head, a channel, and both ways.
    assert hops == {(a, b, c) for c in (0, 1) for a, b in ((0, 2), (2, 0), (1, 3), (3, 1))}
    assert len(world.wires) == len(hops)


def test_heads_are_the_gpus_nearest_to_nics_and_releases_want_some() -> None:
    assert layout(2, 8, 4).heads(22700) == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert layout(2, 4, 1).heads(22700) == [[0], [4]]
    assert layout(2, 4, 1).heads(22800) == layout(2, 2, 2).heads(22700) == []
    assert layout(2, 2, 2).heads(22800) == [[0, 1], [2, 3]]
    assert layout(1, 8, 8).heads(22900) == layout(4, 1, 1).heads(22700) == []
