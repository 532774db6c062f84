"""All-reduces by NCCL's double binary trees: their schedule, how they are told, what is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.found_codes import codes
from support.netib import Options, generate
from support.netib import tree as independent
from support.netib.partition import Shape

from flowcheck.findings.catalog.connections import TREES_OPEN
from flowcheck.findings.catalog.refused_trainers import TREE_PASSES, TREES_BESIDE
from flowcheck.findings.finding import Entry
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_registry import connection_sends, spec_of
from flowcheck.wire.collectives.chunk_partition import Launch
from flowcheck.wire.collectives.double_binary_tree import stands_before, tree_chunks, tree_parents
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol, era_of
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.cuts.cut import Purse
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.learn.search.communicators import ring_and_p2p, rules_told
from flowcheck.wire.learn.search.trees import trees_beside_others

WIDE = ((300, 128), (300,), (64, 300), (64,))
TREES = Options(
    shapes=WIDE,
    ranks=4,
    channels=2,
    version=(2, 23),
    tree_below=1 << 30,
    caps_bytes=(40000, 90000),
    mirrored=(2,),
)


def read(options: Options, folder: Path) -> Reading:
    """What is learned; nothing complete is another than the truth has."""
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    found = read_stream(tape.flows, tape.messages)
    right = {(one.kind, one.sha256) for one in made.truth.collectives}
    told = {(c.kind, c.sha256) for c in found.collectives if c.sha256 and c.ring is not None}
    assert told <= right
    if found.job is not None:
        assert [list(bucket) for bucket in found.job.buckets] == made.truth.buckets
        assert found.job.communicators[0].ranks == options.ranks
        assert {one.sha256 for one in made.truth.gradients} <= {sha for _, sha in told}
    return found


def test_every_rank_has_the_place_the_tree_gives_it() -> None:
    for ranks in range(2, 130):
        for second in (False, True):
            assert tree_parents(ranks, second) == independent.parents(ranks, second)
    # NCCL src/graph/trees.cc draws these two.
    assert tree_parents(14, False)[8:] == (0, 10, 12, 10, 8, 12)
    assert tree_parents(12, True)[:5] == (1, 3, 1, 11, 5)


def test_chunks_lie_where_an_independent_program_has_them() -> None:
    draw = random.Random(5)
    for _ in range(400):
        version = draw.choice([(2, 19), (2, 20), (2, 21), (2, 22), (2, 23), (2, 26), (2, 30)])
        each = draw.choice([1, 2, 4, 8])
        shape = Shape(
            "all_reduce",
            draw.choice(
                [draw.randint(1, 5000), draw.randint(1, 300_000), draw.randint(1, 1 << 23)]
            ),
            each,
            draw.randint(2, 16),
            draw.randint(1, 16),
            draw.choice(["LL", "LL128", "Simple"]),
            version,
        )
        gpus = draw.choice([1, 1, *(n for n in (2, 3, 4, 5, 8) if not shape.ranks % n)])
        shape = replace(shape, gpus=gpus)
        launch = Launch(
            kind=CollectiveKind.ALL_REDUCE,
            work_bytes=shape.count * each,
            element_bytes=each,
            ranks=shape.ranks,
            channels=shape.channels,
            protocol=Protocol(shape.protocol),
            era=era_of(f"2.{version[1]}"),
            thread_rule=spec_of(Algorithm.TREE).thread_rule,
            gpus=gpus,
        )
        theirs = independent.plan(shape)
        for channel, spans in enumerate(tree_chunks(launch)):
            mine = [(start // each, size // each) for start, size in spans]
            assert [s for s in mine if s[1]] == [s for s in theirs.get(channel, ()) if s[1]]
            assert len(mine) == len(theirs.get(channel, ()))


def test_the_second_gpu_of_a_node_has_the_child_that_nccl_gives_it() -> None:
    for nodes, pattern in product(range(3, 17), ("tree", "balanced", "split")):
        options = Options(ranks=2 * nodes, gpus=2, tree_pattern=pattern)
        for channel in (0, 1):
            for rank, above in enumerate(independent.tree_of(options, channel)):
                if above is not None and above // 2 != rank // 2:
                    first = stands_before(rank // 2, above // 2, nodes, channel == 1)
                    assert above % 2 == (pattern == "split" or (pattern == "balanced" and first))
                    assert above // 2 == tree_parents(nodes, channel == 1)[rank // 2]
                    assert not rank % 2
    # NCCL src/graph/trees.cc draws both trees of 12 nodes.
    assert stands_before(4, 8, 12, False) and not stands_before(10, 8, 12, False)
    assert stands_before(11, 7, 12, True) and not stands_before(5, 7, 12, True)


def test_a_link_carries_parts_up_and_the_sum_down() -> None:
    ring = {"ranks": 4, "channels": 2, "protocol": Protocol.LL, "era": era_of("2.23")}
    for sender, receiver, final in (
        (1, 2, (False, True)),
        (2, 1, (True, False)),
        (0, 2, (True, None)),
    ):
        sent = connection_sends(
            CollectiveKind.ALL_REDUCE,
            100_000,
            sender=sender,
            receiver=receiver,
            algorithm=Algorithm.TREE,
            found=1,
            **ring,
        )  # type: ignore[arg-type]
        assert [channel[0].final if channel else None for channel in sent] == list(final)
        assert not any(
            connection_sends(CollectiveKind.ALL_REDUCE, 100_000, sender=sender, receiver=0, **ring)
        )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        TREES,
        replace(TREES, ranks=3, mirrored=(0,), protocol="Simple", version=(2, 19), metric_every=2),
        replace(TREES, ranks=9, mirrored=(4,), channels=4, tree_found=2, version=(2, 30)),
        replace(TREES, ranks=6, mirrored=(3,), protocol="LL128", tree_below=90_000),
        replace(TREES, ranks=7, mirrored=(3, 4), tree_below=90_000),
        replace(TREES, ranks=8, gpus=2, mirrored=(1,), tree_below=90_000, protocol="LL128"),
        replace(TREES, ranks=9, gpus=3, mirrored=(2,), tree_chain="back"),
        replace(TREES, ranks=12, gpus=4, mirrored=(0,), tree_pattern="split", protocol="Simple"),
    ],
    ids=[
        "inner",
        "root-metric",
        "two-searched",
        "mixed",
        "two-mirrors",
        "two-gpus",
        "chain-back",
        "split",
    ],
)
def test_trees_are_learned(options: Options, tmp_path: Path) -> None:
    found = read(options, tmp_path)
    assert found.job is not None and not found.why_not
    assert any(op.algorithm is Algorithm.TREE for op in found.job.each)


UNTOLD = {
    TREES_OPEN: replace(
        TREES, seed=75, ranks=12, channels=8, tree_found=2, mirrored=(4,), shapes=((100, 87), (26,))
    ),
    TREES_BESIDE: replace(TREES, mirrored=(0,), channels=1, directions="rx"),
    TREE_PASSES: replace(TREES, mirrored=(1,), channels=1, directions="tx"),
}


@pytest.mark.parametrize("named", UNTOLD, ids=lambda entry: entry.code)
def test_what_does_not_tell_its_trees_is_refused_by_name(named: Entry, tmp_path: Path) -> None:
    found = read(UNTOLD[named], tmp_path)
    assert found.job is None
    assert named.code in codes(found.why_not), found.why_not


@pytest.mark.parametrize("beside", [{"tensor_layers": 1}, {"metrics_group": True}])
def test_trees_are_told_from_other_communicators(beside: dict[str, Any], tmp_path: Path) -> None:
    made = generate(replace(TREES, ranks=8, gpus=2, **beside), tmp_path)
    tape = read_capture_files(made.files)
    flows = sort_flows(tape.flows, tape.messages)
    streams, _ = ring_and_p2p(flows.streams)
    found = trees_beside_others(streams, rules_told(flows), Purse(1_000_000))
    assert found is not None
    own, others = found
    assert (own.ring.ranks, own.ring.gpus) == (8, 2) and own.habits.buckets
    assert len(others) == 4
    assert len(streams) == 4 + sum(len(edge.streams) for edge in own.ring.edges)


@pytest.mark.parametrize("directions", ["both", "tx"])
def test_a_ring_with_buffers_as_large_as_a_bucket_is_no_tree(
    directions: str, tmp_path: Path
) -> None:
    ring = Options(
        ranks=3,
        shapes=((16, 2), (2,)),
        caps_bytes=(4, 100),
        counters=1,
        buffers=4,
        metric_every=1,
        directions=directions,
    )
    found = read(ring, tmp_path)
    assert not any("tree" in str(why) for why in found.why_not)
    assert not any("tree" in str(word) for one in found.collectives for word in one.assumed)
