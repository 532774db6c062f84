"""NVLS trees: what each connection carries, against a program that shares no line with FlowCheck's.

By the facts of NCCL's sources: no capture of such a job was at hand.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.netib import nvls

from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_registry import connection_sends, spec_of
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol, era_of
from flowcheck.wire.collectives.nvls_shape import NO_HEAD, NvlsShape
from flowcheck.wire.collectives.nvls_tree_parts import nvls_direction
from flowcheck.wire.collectives.ring_schedule import Schedule

VERSIONS = (
    (2, 18),
    (2, 19),
    (2, 20),
    (2, 21),
    (2, 22),
    (2, 23),
    (2, 26),
    (2, 28),
    (2, 29),
    (2, 30),
)
MIB = 1 << 20
SETTINGS = {(2, 18): 524_288, (2, 20): 524_288}
"""{release: largest chunk}, where the newest one of its era has another."""


def stated(version: tuple[int, int], nodes: int, start: int) -> int:
    """What FlowCheck has to be told of a release that is not the newest of its era."""
    if version == (2, 18) and not start:
        return 524_288
    return start or (SETTINGS.get(version, 0) if nodes < 4 else 0)


def sends(
    count: int,
    each: int,
    version: tuple[int, int],
    machine: nvls.Machine,
    *,
    edge: tuple[int, int] = (0, 1),
    heads: tuple[int, ...] = (),
    gpus: int = 8,
) -> Schedule:
    """Of the connections from one node to another."""
    return connection_sends(
        CollectiveKind.ALL_REDUCE,
        count * each,
        sender=edge[0] * gpus,
        receiver=edge[1] * gpus,
        heads=heads,
        nvls=NvlsShape(
            heads=machine.heads,
            channels=machine.channels,
            nodes=machine.nodes,
            chunk_bytes=stated(version, machine.nodes, machine.start),
        ),
        algorithm=Algorithm.NVLS_TREE,
        element_bytes=each,
        ranks=machine.nodes * gpus,
        gpus=gpus,
        channels=2,
        protocol=Protocol.SIMPLE,
        era=era_of(".".join(map(str, version))),
    )


def drawn(rng: random.Random) -> tuple[int, int, tuple[int, int], nvls.Machine]:
    """(elements, bytes of one, release, machine)."""
    version, each = rng.choice(VERSIONS), rng.choice((2, 2, 4, 4, 4, 8, 1))
    count = rng.choice(
        (
            rng.randint(1, 64),
            rng.randint(1, 100_000),
            rng.randint(1, 3_000_000),
            rng.randint(1, 12_000_000),
            rng.randint(1, 300) * 8192 + rng.choice((-1, 0, 1)),
        )
    )
    start = rng.choice((0, 0, 0, 65_536, 131_072, 262_144, 524_288))
    machine = nvls.Machine(
        heads=rng.choice((1, 2, 3, 4, 8)),
        channels=rng.choice((1, 2, 6, 16, 16, 24, 32)),
        nodes=rng.randint(2, 9),
        start=start,
    )
    return count, each, version, machine


@pytest.mark.parametrize("seed", range(10))
def test_each_element_is_in_one_message_as_the_other_program_has_it(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        count, each, version, machine = drawn(rng)
        want = nvls.pieces_of(count, each, version, machine)
        edge = rng.choice(
            [
                (a, b)
                for b in range(machine.nodes)
                if (a := nvls.above(b, 0, machine.nodes)) is not None
            ]
        )
        held = np.zeros(count, np.int8)
        for head in range(machine.heads):
            own = sends(count, each, version, machine, edge=edge, heads=(head,) * machine.channels)
            for channel, table in enumerate(own):
                if nvls_direction(*edge, channel, machine.nodes) is None:
                    assert not len(table)
                    continue
                told = want.get((channel, head), [])
                assert [n * each for _, n in told] == table.data_bytes.tolist()
                starts = table.start_bytes.tolist()
                assert [at * each for at, n in told if n] == [
                    start for start, (_, n) in zip(starts, told, strict=True) if n
                ]
            for pieces in (of for (_, h), of in want.items() if h == head):
                for at, length in pieces:
                    held[at : at + length] += 1
        assert (held == 1).all()


@pytest.mark.parametrize("nodes", range(2, 17))
def test_what_goes_up_comes_down_in_equal_pieces(nodes: int) -> None:
    machine = nvls.Machine(heads=2, channels=4, nodes=nodes)
    for below in range(nodes):
        for channel in range(4):
            above = nvls.above(below, channel, nodes)
            if above is None:
                continue
            up, down = (
                sends(100_003, 4, (2, 30), machine, edge=edge, heads=(1,) * 4)[channel]
                for edge in ((below, above), (above, below))
            )
            assert up.sizes == down.sizes
            assert len(up)
            assert not up.final.any()
            assert down.final.all()


@pytest.mark.parametrize(
    ("count", "nodes", "version", "want"),
    [
        (25 * MIB // 4, 2, (2, 30), [65536, 65536, 65536, 8192]),
        (25 * MIB // 4, 4, (2, 22), [65536, 65536, 65536, 8192]),
        (160 * MIB // 4, 2, (2, 30), [131072] * 10),
        (1024 * MIB // 4, 8, (2, 30), [65536] * 128),
        (1_000_003, 2, (2, 30), [32768]),
    ],
)
def test_messages_of_usual_buckets(
    count: int, nodes: int, version: tuple[int, int], want: list[int]
) -> None:
    machine = nvls.Machine(heads=8, channels=16, nodes=nodes)
    edge = (nvls.above(1, 0, nodes) or 0, 1)
    for head in (0, 7):
        own = sends(count, 4, version, machine, edge=edge, heads=(head,) * 16)
        assert own[0].wire_bytes.tolist() == want
    if count == 1_000_003:
        assert own[15].wire_bytes.tolist() == [8380]


def test_a_connection_of_rings_carries_the_head_that_it_joins_and_no_other() -> None:
    machine = nvls.Machine(heads=2, channels=4, nodes=2)
    own = sends(1 << 16, 4, (2, 30), machine, heads=(0, NO_HEAD, 1, NO_HEAD))
    assert [len(table) > 0 for table in own] == [True, False, True, False]
    assert own[0].start_bytes.tolist() != own[2].start_bytes.tolist()
    assert not any(map(len, sends(1 << 16, 4, (2, 30), machine)))


def test_the_row_asks_for_all_ports_of_a_node() -> None:
    spec = spec_of(Algorithm.NVLS_TREE)
    assert spec.all_ports_of_a_node
    assert spec.most_nodes_of_several_ports is None
