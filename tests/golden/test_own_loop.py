"""Recorded jobs that sum gradients without DistributedDataParallel, and the trainers' account."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from support import preloaded
from support.recorded import assert_trainers_bits

from flowcheck.config import ModelConfig
from flowcheck.findings.catalog.hybrid_jobs import WEIGHTS_WERE_SENT
from flowcheck.findings.catalog.job_learning import NO_ORDER_FITS, OTHER_ORDER_FITS, STATE_A_MODEL
from flowcheck.findings.catalog.step_arithmetic import SQUARE_ROOTS
from flowcheck.ops.analysis import analyze_command
from flowcheck.ops.job_setup.job_file_references import with_factory_model
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.trainer.habits import BUCKET
from flowcheck.wire.training_job.learned_job import Parameter
from flowcheck.wire.training_job.operator_statements import OperatorStatement

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / "tests" / "data" / "own"
FACTORY = f"{DATA / 'net.py'}:make"
READY = ("5.bias", "3.bias", "1.bias", "1.weight", "0.bias", "5.weight", "3.weight", "0.weight")
"""Of own_loop.py's "ready": no order that could be guessed."""


def truth_of(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return told


def reading(name: str, model: ModelConfig | None) -> Reading:
    stated = with_factory_model(model).operator_statement if model is not None else None
    tape = read_capture_files([DATA / f"{name}.pcapng"])
    return read_stream(tape.flows, tape.messages, stated=stated)


@pytest.mark.parametrize(
    ("name", "order", "buckets"),
    [
        ("each-ll", (), [[i] for i in range(8)]),
        ("flat-simple", (), [list(range(8))]),
        ("buckets-ll", (), [[7, 6, 5, 4], [3, 2, 1, 0]]),
        ("buckets-ll-fused", (), [[7, 6, 5, 4], [3, 2, 1, 0]]),
        ("ready-ll", READY, [[7], [5], [3], [2], [1], [6], [4], [0]]),
    ],
)
def test_layouts_are_told_from_the_sizes(
    name: str, order: tuple[str, ...], buckets: list[list[int]]
) -> None:
    model = ModelConfig(factory=FACTORY, order=order)
    found = reading(name, model)
    assert found.job is not None
    assert [list(bucket) for bucket in found.job.buckets] == buckets
    sums = [
        each["sha256"]
        for each in truth_of(name)["collectives"]
        if each["kind"] == "all_reduce" and each["bytes"] > 4
    ]
    told = [c.sha256 for c in found.collectives if c.meaning == "gradient bucket"]
    assert told == sums
    assert found.weights is not None and found.weights.complete


def test_an_order_that_sizes_leave_open_is_not_guessed() -> None:
    found = reading("ready-ll", ModelConfig(factory=FACTORY))
    assert found.job is None
    assert found.why_not[0].is_any_of(NO_ORDER_FITS)


@pytest.mark.parametrize("name", ["each-ll", "flat-simple"])
def test_weights_that_are_sent_though_the_job_file_says_otherwise_are_no_start(name: str) -> None:
    found = reading(name, ModelConfig(factory=FACTORY, seed=1))
    assert found.job is None
    assert found.why_not[0].is_any_of(WEIGHTS_WERE_SENT)


WIDE = ((29, 13), (7, 13), (7,), (13, 7), (13,), (), (13,), (13,), (29, 13))
"""Of wide-ll's bfloat16 weights, whose gradients are summed as one float32 tensor."""


def contiguous(sizes: tuple[int, ...], element_bytes: int) -> Parameter:
    strides = tuple(prod(sizes[i + 1 :]) for i in range(len(sizes)))
    return Parameter(sizes=sizes, strides=strides, element_bytes=element_bytes)


def test_whenever_they_are_read_no_sum_is_taken_for_the_weights_it_is_twice_as_large_as() -> None:
    """Of two ranks a half of a sum is one message, like a broadcast of the weights in their type,
    and what follows is as good a row of sums until the last one ends."""
    stated = OperatorStatement(
        parameters=tuple(contiguous(sizes, 2) for sizes in WIDE),
        order=tuple(reversed(range(len(WIDE)))),
        gradient_element_bytes=4,
        weights_unsent=True,
    )
    sums = [one["sha256"] for one in truth_of("wide-ll")["collectives"]]
    tape = read_capture_files([DATA / "wide-ll.pcapng"])
    jobs = 0
    for until in range(1, len(tape.messages) + 1):
        found = read_stream(tape.flows, tape.messages[:until], stated=stated, ended=False)
        told = [one.sha256 for one in found.collectives if one.meaning == BUCKET and one.sha256]
        if found.job is not None:
            jobs += 1
            assert found.job.start_unknown and told and told == sums[: len(told)], until
    assert jobs > len(tape.messages) // 2


def test_a_gradient_of_one_element_is_a_sum_of_its_own_where_every_gradient_is() -> None:
    """On the wire it and its neighbour together would be as large as the neighbour."""
    shapes = ((), *WIDE[:5], *WIDE[6:-1])
    stated = OperatorStatement(
        parameters=tuple(contiguous(sizes, 4) for sizes in shapes),
        order=tuple(reversed(range(len(shapes)))),
        weights_unsent=True,
    )
    tape = read_capture_files([DATA / "each-scalar-ll.pcapng"])
    found = read_stream(tape.flows, tape.messages, stated=stated)
    sums = [one["sha256"] for one in truth_of("each-scalar-ll")["collectives"]]
    assert found.job is not None
    assert [len(bucket) for bucket in found.job.buckets] == [1] * 8
    told = [c.sha256 for c in found.collectives if c.meaning == BUCKET]
    # Of the last iteration the smallest have no hash.
    assert len(told) == 48 and told[:40] == sums[:40]
    assert any(one.is_any_of(OTHER_ORDER_FITS) for one in found.job.assumed)


def test_without_a_model_it_says_that_one_is_needed() -> None:
    found = reading("each-ll", None)
    assert found.job is None
    assert STATE_A_MODEL() in found.why_not


def test_another_model_is_no_reading_of_it(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("from torch import nn\ndef make():\n    return nn.Linear(64, 11)\n")
    found = reading("buckets-ll", ModelConfig(factory=f"{other}:make"))
    assert found.job is None


@pytest.mark.parametrize(
    ("name", "divisor"),
    [
        pytest.param("each-ll", 2, marks=pytest.mark.nightly),
        pytest.param("buckets-ll", 1, marks=pytest.mark.nightly),
        ("buckets-ll-fused", 1),
    ],
)
def test_every_step_has_the_trainers_own_bits(name: str, divisor: int, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        f'[optimizer]\nname = "adamw"\nlearning_rate = 0.01\ngradient_divisor = {divisor}\n'
        f'[model]\nfactory = "{FACTORY}"\n'
    )
    words = ["replay", str(DATA / f"{name}.pcapng"), "--job", str(job)]
    done = preloaded.run(
        [*words, "--digests", "--json", "--source", "file"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert assert_trainers_bits(told, truth_of(name)) == {1, 2, 3, 4}
    assert any(one["code"] == SQUARE_ROOTS.code for one in told["assumed"])
    assert any("DistributedDataParallel" in one["sentence"] for one in told["assumed"])


def test_a_model_that_is_not_the_trainers_is_said_where_they_tell_theirs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    capture = DATA.parent / "two-ranks-ll.pcapng"
    assert analyze_command.run([capture], model=FACTORY, as_json=True) == 0
    notes = json.loads(capfd.readouterr().out)["notes"]
    assert any("theirs are followed" in note["sentence"] for note in notes)
