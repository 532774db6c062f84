"""Plain trees over hosts of several GPUs in the lab, on a network inside the process: one GPU of
each host is in the tree, and its messages are those of NCCL's partition, written out once more."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from support.loop_ranks import Ranks, module
from unit.test_lab_nvls import TREES, layout, parts

TREE = 1
WIRE = {"LL": lambda data: -(-data // 8) * 16, "LL128": lambda data: -(-data // 1920) * 2048}


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return module(Path(tmp_path_factory.mktemp("loop")))


def chunk_of(protocol: str, part_bytes: int, hosts: int, gpus: int) -> int:
    """Bytes of a chunk, from NCCL 2.22 on."""
    if protocol != "LL128":
        return {"LL": 32768, "SIMPLE": 524288}[protocol]
    chunk, depth = 576000, 1 + math.floor(math.log2(hosts)) + 0.1 * gpus
    while part_bytes // chunk < 64 * depth / gpus and chunk > 131072:
        chunk //= 2
    while part_bytes // chunk < 16 * depth / gpus and chunk > 32768:
        chunk //= 2
    return chunk // 1920 * 1920


@pytest.mark.parametrize("protocol", ["LL", "LL128", "SIMPLE"])
@pytest.mark.parametrize(
    ("hosts", "gpus", "nics"), [(2, 2, 1), (2, 4, 2), (3, 2, 2), (3, 3, 1), (5, 2, 1), (6, 2, 2)]
)
def test_sums_are_exact_and_messages_are_those_of_nccl(
    loop: Any, hosts: int, gpus: int, nics: int, protocol: str
) -> None:
    draw, ranks = random.Random(f"{hosts}{gpus}{protocol}"), hosts * gpus
    for version, channels in ((22300, 4), (22900, 2), (23000, 4)):
        told = layout(hosts, gpus, nics)
        world = Ranks(
            *(loop, ranks, channels, protocol, version),
            hosts=told.host_of,
            orders=[told.ring(channel) for channel in range(channels)],
            chains=[told.chain(channel) for channel in range(channels)],
            found=told.found(channels),
            tree_below=1 << 62,
        )
        try:
            world.connect(TREE)
            # Enough for every channel: fewer are used of less (32,768 bytes each of Simple).
            count = draw.randrange(60_000, 500_000)
            own = [torch.arange(count, dtype=torch.float32) % 1000 * rank for rank in range(ranks)]
            world.all("all_reduce", own, own, count)
            total = torch.arange(count, dtype=torch.float32) % 1000 * sum(range(ranks))
            assert all(torch.equal(one, total) for one in own)
            wanted = {}
            weight = 8 if protocol == "LL" and version >= 22600 else 2
            for channel, (_, elements) in enumerate(parts(version, count, 4, channels, weight)):
                part = elements * 4
                chunk = chunk_of(protocol, part, hosts, gpus)
                data = [min(chunk, part - at) for at in range(0, part, chunk)]
                sizes = [WIRE.get(protocol, int)(one) for one in data]
                gpu = channel % nics * gpus // nics
                # A channel a NIC is found and doubled, whatever NCCL_MAX_NCHANNELS leaves of them.
                second = channel >= max(nics, channels // 2)
                for parent, children in TREES[hosts][second].items():
                    for child in children:
                        a, b = parent * gpus + gpu, child * gpus + gpu
                        wanted[a, b, channel] = wanted[b, a, channel] = sizes
            found = world.wire_messages()
            sent = {end: [one.bytes for one in every] for end, every in found.items()}
            assert sent == {end: sizes for end, sizes in wanted.items() if sizes}
        finally:
            world.close()


def test_averages_go_by_rings(loop: Any) -> None:
    told = layout(2, 2, 1)
    world = Ranks(
        *(loop, 4, 1, "SIMPLE", 22900),
        hosts=told.host_of,
        orders=[told.ring(0)],
        chains=[told.chain(0)],
        tree_below=1 << 62,
    )
    try:
        own = [torch.full((900,), float(rank)) for rank in range(4)]
        world.all("all_reduce", own, own, 900, reduction="avg")
        assert own[0].eq(1.5).all()
        assert {one.capacity for end in world.wire_messages().values() for one in end} == {1 << 20}
    finally:
        world.close()
