"""All-reduces by plain trees over several NICs a node, alone, in turns with rings and in turns with
NVLS trees, of an independent generator: every sum, and every step's gradient, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from property.test_netib_followed import follow
from property.test_netib_nvls import LARGER, NVLS
from property.test_netib_trees import TREES
from support.netib import Options, generate

from flowcheck.findings.catalog.connections import CHANNELS_BY_GPU, TREES_BY_GPU
from flowcheck.findings.catalog.refused_trainers import RING_PORTS_MISSING
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.learn import read_stream
from flowcheck.wire.learn.cuts import purse
from flowcheck.wire.learn.flows.groups import Group
from flowcheck.wire.learn.flows.port_orders import by_gpus
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.learn.flows.tree_lanes import _Links
from flowcheck.wire.learn.jobs import tree
from flowcheck.wire.learn.search.communicators import ring_and_p2p
from flowcheck.wire.training_job.learned_job import decode_job

PORTS = replace(
    TREES, gpus=2, rails=2, channels=4, tree_found=2, ring_exits="crossed", tree_pattern="tree"
)
FOUR = replace(PORTS, ranks=8, gpus=4, rails=4, channels=8, tree_found=4)
NEXT_GPU = replace(PORTS, ranks=8, gpus=4, ring_exits="own")
HANGING = replace(NEXT_GPU, tree_pattern="balanced", tree_chain="back")
"""A node above is entered at the second GPU of its row, by the same NIC."""
PLAIN = {
    "two-gpus": PORTS,
    "one-tree-a-port": replace(PORTS, channels=2, version=(2, 30), mirrored=(1,)),
    "four-gpus-ll128": replace(FOUR, mirrored=(1,), version=(2, 30), protocol="LL128"),
    "eight-gpus": replace(
        FOUR, ranks=16, gpus=8, rails=8, channels=16, tree_found=8, protocol="Simple",
        version=(2, 28), mix=((2000, "LL"),),
    ),
    "next-gpu": NEXT_GPU,
    "hanging": HANGING,
    "hanging-and-rings": replace(HANGING, tree_below=90000, version=(2, 21)),
    "three-nodes": replace(PORTS, ranks=6, mirrored=(2,)),
    "one-file": replace(PORTS, manners=replace(PORTS.manners, merged=True)),
    "metric": replace(PORTS, metric_every=2, steps=5),
}  # fmt: skip
TURNS = replace(
    LARGER, channels=4, tree_found=2, tree_below=200_000, ring_exits="crossed",
    tree_pattern="tree", mix=((200_000, "LL"),), caps_bytes=(100_000, 900_000),
)  # fmt: skip
IN_TURNS = {
    "in-turns": TURNS,
    "in-turns-four-gpus": replace(
        TURNS, ranks=8, gpus=4, channels=8, nvls_channels=8, tree_found=4, mirrored=(1,)
    ),
    "in-turns-ll128": replace(TURNS, mix=((20_000, "LL"), (200_000, "LL128")), version=(2, 27)),
    "in-turns-eight-gpus": replace(
        TURNS, ranks=16, gpus=8, channels=16, nvls_channels=16, tree_found=8
    ),
}


def of_nics(options: Options) -> Options:
    """NICs number queue pairs each by itself: neither numbers nor the first use, which is chance,
    order connections of several NICs. By this seed numbers tell another order."""
    return replace(options, seed=2, manners=replace(options.manners, numbers_of_nics=True))


PLAIN |= {f"{name}-own-numbers": of_nics(PLAIN[name]) for name in ("four-gpus-ll128", "next-gpu")}
IN_TURNS |= {
    f"{name}-own-numbers": of_nics(IN_TURNS[name]) for name in ("in-turns", "in-turns-four-gpus")
}
FOLLOWED = PLAIN | IN_TURNS
BY_DAY = (
    "two-gpus",
    "hanging-and-rings",
    "three-nodes",
    "in-turns",
    "four-gpus-ll128-own-numbers",
    "next-gpu-own-numbers",
    "in-turns-four-gpus-own-numbers",
)
NAMES = [
    pytest.param(name, marks=[pytest.mark.nightly] * (name not in BY_DAY)) for name in FOLLOWED
]


@pytest.mark.parametrize("name", NAMES)
def test_each_sum_is_told(name: str, tmp_path: Path) -> None:
    made = generate(FOLLOWED[name], tmp_path)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages)
    told = [c for c in reading.collectives if c.kind == "all_reduce" and c.meaning]
    truth = [c for c in made.truth.collectives if c.kind == "all_reduce" and c.gradient]
    assert [c.sha256 for c in told] == [c.sha256 for c in truth]
    used = {c.algorithm for c in told}
    assert Algorithm.TREE in used and (Algorithm.NVLS_TREE in used) == (name in IN_TURNS)
    assert reading.job is not None and reading.why_not == ()
    assert TREES_BY_GPU() in reading.job.assumed
    assert reading.weights is not None
    assert reading.weights.data.tobytes() == made.truth.weights


@pytest.mark.parametrize("name", NAMES)
def test_jobs_are_followed(name: str, tmp_path: Path, shm: Path) -> None:
    options = FOLLOWED[name]
    chain = follow(options, tmp_path, shm)
    job = decode_job(chain.run.learned_job.read_bytes())
    assert job.communicators[0].ranks == options.ranks
    assert any(op.algorithm is Algorithm.TREE for op in job.each)


@pytest.mark.parametrize(("writers", "is_open"), [((0, 1), False), ((0, 0), True), ((1, 1), True)])
def test_ports_that_nothing_orders_but_their_addresses_are_not_ordered(
    writers: tuple[int, int], is_open: bool
) -> None:
    """An address says nothing of the GPU that a port is nearest to: the halves of every sum would
    change places."""
    every = [("10.0.0.9", "10.0.1.9"), ("10.0.0.10", "10.0.1.10")]
    lanes: Any = {
        (0, 1): {
            ends: [
                SimpleNamespace(tag=gpu, key=SimpleNamespace(source=ends[0], destination=ends[1]))
            ]
            for ends, gpu in zip(every, writers, strict=True)
        }
    }
    assert _Links({}, lanes, gpus=2, nodes=2, with_nvls=False)._is_open((0, 1)) is is_open


@pytest.mark.parametrize(
    ("name", "port"),
    [
        ("two-gpus", 0),
        *(
            pytest.param(name, port, marks=pytest.mark.nightly)
            for name, port in (("two-gpus", 1), ("in-turns", 0), ("in-turns", 1))
        ),
    ],
)
def test_a_port_that_is_missing_is_told_before_the_searchs_end(
    name: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no sum is told for certain. A search is cut short: it would find nothing."""
    monkeypatch.setattr(purse, "MOST_LAID", tuple(most // 50 for most in purse.MOST_LAID))
    made = generate(FOLLOWED[name], tmp_path)
    tape = read_capture_files([path for n, path in enumerate(made.files) if n != port])
    reading = read_stream(tape.flows, tape.messages)
    assert reading.job is None
    assert reading.why_not[0] == RING_PORTS_MISSING(seen=(1 - port,), others=(port,))
    true = {c.sha256 for c in made.truth.collectives}
    sums = [c for c in reading.collectives if c.kind == "all_reduce" and c.complete]
    assert all(c.doubtful or c.sha256 in true for c in sums)


@pytest.mark.parametrize(
    "options",
    [
        replace(PORTS, channels=1),
        NEXT_GPU,
        replace(NVLS, gpus=8, ranks=16, nics=4, nvls_channels=8),
        TURNS,
    ],
    ids=["one-channel", "two-nics-of-four-gpus", "four-nics-of-eight-gpus", "in-turns"],
)
def test_no_port_that_is_there_or_idle_is_accused(options: Options, tmp_path: Path) -> None:
    tape = read_capture_files(generate(options, tmp_path).files)
    streams, _ = ring_and_p2p(sort_flows(tape.flows, tape.messages).streams)
    assert tree._ports_missing(streams) is None


@pytest.mark.parametrize("ports", [1, 3])
def test_ports_of_an_odd_number_are_no_pairs(ports: int) -> None:
    """A ring then leaves each node by the port that it entered by."""
    ends = [(f"10.0.0.{n}", f"10.0.1.{n}") for n in range(ports)]
    row = [
        SimpleNamespace(tag=n, key=SimpleNamespace(source=a, destination=b, dest_qp=n))
        for n, (a, b) in enumerate(ends)
    ]
    group: Any = Group({("a", "b"): tuple(row)}, {}, frozenset(), 0, CHANNELS_BY_GPU())
    rows: Any = {(0, 1): row}
    [told] = by_gpus(group, {(0, 1): ("a", "b")}, rows, 4)
    assert [stream.tag for stream in told.links["a", "b"]] == [*range(ports)]
