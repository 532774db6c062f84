"""The extract stage on jobs of an independent generator: every step's gradient, bit for bit."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from support.cut import gradient_of, is_true_but_for
from support.netib import Options, generate
from support.staged import Chain, played

from flowcheck.findings.catalog.collective_evidence import WEIGHTS_END_OPEN, WEIGHTS_IN_ONE_LINE
from flowcheck.findings.catalog.nccl_transport import (
    ADAPTIVE_ROUTING,
    CLEAR_TO_SEND_LAYOUT,
    GROUPED_RECEIVES,
    LL128_ORDER_OPEN,
    REGISTERED_BUFFERS,
)
from flowcheck.messages import Drained, StepLost
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream
from flowcheck.wire.training_job.learned_job import decode_job

SMALL = ((64, 100), (64,), (10, 64), (10,))
WIDE = ((300, 128), (300,), (64, 300), (64,))
UNTOLD = (WEIGHTS_END_OPEN, WEIGHTS_IN_ONE_LINE)
"""A model of a few groups of lines: its end lies anywhere in the last one, and a replica is
refused."""


def follow(options: Options, folder: Path, shm: Path) -> Chain:
    """The job through parser and extract stage, every step of it compared with the truth."""
    made = generate(options, folder)
    chain = Chain(folder, shm / "memory", made.files, 512)
    found = played(chain, 32)
    chain.close()
    [end] = chain.heard.of(Drained)
    if (
        not found
        and options.protocol == "LL128"
        and any(why.is_any_of(*UNTOLD) for why in end.why.arguments["reasons"])
    ):
        return chain
    right = {step + 1: gradient_of(made.truth, step) for step in range(options.steps)}
    assert found == right, [
        (step, step in found, found.get(step) == right[step]) for step in right
    ] + chain.heard.of(StepLost)
    return chain


QUEUE_PAIRS = {
    "turns-ll": Options(shapes=SMALL, qps=2, version=(2, 23)),
    "turns-ll-3": Options(shapes=SMALL, qps=3, version=(2, 20), channels=2),
    "turns-simple": Options(
        shapes=WIDE,
        qps=2,
        version=(2, 26),
        protocol="Simple",
        channels=2,
        caps_bytes=(40000, 90000),
    ),
    "turns-ll128-4": Options(
        shapes=WIDE, qps=4, version=(2, 29), protocol="LL128", caps_bytes=(40000, 90000)
    ),
    "turns-4-ranks": Options(shapes=WIDE, ranks=4, qps=3, version=(2, 23), mirrored=(2,)),
    "turns-metric": Options(shapes=SMALL, qps=3, version=(2, 23), metric_every=2, steps=6),
    "turns-adaptive": Options(
        shapes=WIDE, qps=2, version=(2, 21), protocol="Simple", adaptive=True
    ),
    "split-ll": Options(shapes=SMALL, qps=2, version=(2, 19)),
    "split-ll-3": Options(shapes=SMALL, qps=3, version=(2, 19), channels=2),
    "split-simple": Options(
        shapes=WIDE, qps=3, version=(2, 19), protocol="Simple", caps_bytes=(40000, 90000)
    ),
    "split-ll128": Options(
        shapes=WIDE, qps=3, version=(2, 23), split=True, protocol="LL128", channels=2
    ),
    "split-4-ranks": Options(
        shapes=WIDE, ranks=4, qps=4, version=(2, 29), split=True, protocol="Simple", mirrored=(1,)
    ),
    "split-metric": Options(shapes=SMALL, qps=2, version=(2, 19), metric_every=2, steps=6),
    "two-mirrors": Options(
        shapes=SMALL, ranks=3, qps=2, version=(2, 23), channels=2, mirrored=(0, 1)
    ),
}


BY_NIGHT = {
    *("turns-ll", "turns-4-ranks", "turns-metric"),
    *("split-ll", "split-ll-3", "split-simple", "split-metric"),
}
"""What the others have part by part."""

FORMS = {
    "cts-210": (Options(shapes=SMALL, version=(2, 10), steps=6), CLEAR_TO_SEND_LAYOUT, "2.10-2.11"),
    "cts-212": (
        Options(shapes=WIDE, version=(2, 12), protocol="Simple", ranks=3, mirrored=(1,)),
        CLEAR_TO_SEND_LAYOUT,
        "2.12-2.19",
    ),
    "registered": (
        Options(shapes=WIDE, version=(2, 30), protocol="Simple", registered=True),
        REGISTERED_BUFFERS,
        None,
    ),
    "grouped-219": (
        Options(shapes=SMALL, version=(2, 19), pipeline_bytes=90000, grouped=2),
        GROUPED_RECEIVES,
        2,
    ),
    "grouped-230": (
        Options(shapes=SMALL, version=(2, 30), pipeline_bytes=200000, grouped=3),
        GROUPED_RECEIVES,
        2,
    ),
    "adaptive": (
        Options(shapes=WIDE, version=(2, 23), protocol="Simple", adaptive=True),
        ADAPTIVE_ROUTING,
        None,
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_the_transport_are_told_and_followed(name: str, tmp_path: Path, shm: Path) -> None:
    options, entry, value = FORMS[name]
    follow(options, tmp_path, shm)
    tape = read_capture_files(sorted(tmp_path.glob("*.pcap")))
    formats = read_stream(tape.flows, tape.messages).formats
    told = [one for one in formats if one.is_any_of(entry)]
    assert any(value in (None, *one.arguments.values()) for one in told), formats
    assert any(one.is_any_of(ADAPTIVE_ROUTING) for one in formats) == (name == "adaptive")


def test_the_older_order_of_ll128_is_refused_by_name(tmp_path: Path) -> None:
    options = Options(shapes=SMALL, version=(2, 9), protocol="LL128", steps=2)
    tape = read_capture_files(generate(options, tmp_path).files)
    reading = read_stream(tape.flows, tape.messages)
    assert reading.job is None and LL128_ORDER_OPEN() in reading.why_not
    assert not any(c.kind == "all_reduce" and c.complete for c in reading.collectives)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in BY_NIGHT else ())
        for name in QUEUE_PAIRS
    ],
)
def test_connections_of_several_queue_pairs_are_followed(
    name: str, tmp_path: Path, shm: Path
) -> None:
    options = QUEUE_PAIRS[name]
    chain = follow(options, tmp_path, shm)
    job = decode_job(chain.run.learned_job.read_bytes())
    assert {len(edge.turns(c)) for edge in job.edges for c in range(len(edge.flows))} == {
        options.qps
    }
    assert {edge.split for edge in job.edges} == {options.splits}


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 12))]
)
@pytest.mark.parametrize("name", ["turns-simple", "split-simple", "split-ll-3"])
def test_of_lost_frames_no_step_is_wrong(name: str, seed: int, tmp_path: Path, shm: Path) -> None:
    options = replace(QUEUE_PAIRS[name], seed=seed, lose=3, steps=6)
    made = generate(options, tmp_path)
    chain = Chain(tmp_path, shm / "memory", made.files, 512)
    found = played(chain, 32)
    chain.close()
    for step, gradient in found.items():
        assert gradient == gradient_of(made.truth, step - 1), step
    for step, (gradient, missing) in chain.partial.items():
        assert is_true_but_for(gradient, missing, gradient_of(made.truth, step - 1)), step
    [end] = chain.heard.of(Drained)
    assert len(found) + len(chain.partial) == options.steps or end.why


NODES = {
    "orders": Options(
        shapes=SMALL, ranks=4, gpus=2, orders=2, channels=2, version=(2, 21), mirrored=(1,)
    ),
    "simple-ports": Options(
        shapes=WIDE, ranks=12, gpus=4, protocol="Simple", version=(2, 26), channels=2, rails=2,
        mirrored=(1,), caps_bytes=(40000, 90000),
    ),
    "queue-pairs-metric": Options(
        shapes=WIDE, ranks=16, gpus=8, protocol="LL128", version=(2, 23), channels=2, qps=2,
        metric_every=2, steps=6,
    ),
    "long": Options(shapes=WIDE, ranks=64, gpus=8, version=(2, 23), mirrored=(3,), steps=3),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name != "orders")) for name in NODES]
)
def test_nodes_of_several_gpus_are_followed(name: str, tmp_path: Path, shm: Path) -> None:
    options = NODES[name]
    chain = follow(options, tmp_path, shm)
    job = decode_job(chain.run.learned_job.read_bytes())
    assert job.communicators[0].gpus == options.gpus
    assert job.communicators[0].ranks == options.ranks


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(40))
def test_random_ones_are_followed_too(seed: int, tmp_path: Path, shm: Path) -> None:
    draw = random.Random(seed)
    shapes = tuple(
        tuple(draw.randint(1, 90) for _ in range(draw.randint(1, 2)))
        for _ in range(draw.randint(2, 9))
    )
    follow(
        Options(
            seed=seed,
            shapes=shapes,
            ranks=draw.choice([2, 2, 3, 4]),
            channels=draw.choice([1, 2, 3]),
            qps=draw.choice([1, 2, 3, 4]),
            version=draw.choice([(2, 19), (2, 21), (2, 23), (2, 26), (2, 29)]),
            split=draw.choice([None, True, False]),
            protocol=draw.choice(["LL", "LL128", "Simple"]),
            caps_bytes=(draw.randint(1000, 20000), draw.randint(4000, 60000)),
            steps=draw.randint(4, 7),
            metric_every=draw.choice([0, 0, 2]),
            ipv6=draw.random() < 0.5,
            mtu=draw.choice([256, 1024, 4096]),
        ),
        tmp_path,
        shm,
    )
