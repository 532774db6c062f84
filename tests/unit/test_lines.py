"""LL128's lines as before NCCL 2.10: told from since by what they hold, or by the release that is
stated, or refused; judged by a generator that shares nothing."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import msgspec
import pytest
from support.netib import Options, Truth, generate
from support.staged import Chain, played

from flowcheck.config import job_from
from flowcheck.findings.catalog.nccl_transport import (
    LL128_LINEAR_BY_CONTENT,
    LL128_LINEAR_STATED,
    LL128_ORDER_ASSUMED,
    LL128_ORDER_OPEN,
)
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.collectives.nccl_parameters import has_linear_ll128
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.training_job.learned_job import decode_job, encode_job
from flowcheck.wire.training_job.operator_statements import OperatorStatement

LINEAR = (LL128_LINEAR_BY_CONTENT, LL128_LINEAR_STATED)
SHAPES = ((300, 40), (300,), (90, 300), (90,), (70, 90), (70,))
OLD = Options(shapes=SHAPES, protocol="LL128", version=(2, 9))
SHORT = replace(OLD, steps=3)
SMALL_IN_LL = replace(OLD, mix=((4096, "LL"),))
"""Nothing of the start-up is in LL128 but the weights, which may be any numbers."""


def read(options: Options, folder: Path, linear: bool | None = None) -> tuple[Truth, Reading]:
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    return made.truth, read_stream(
        tape.flows, tape.messages, stated=OperatorStatement(linear=linear)
    )


def assert_read(truth: Truth, reading: Reading, *, linear: bool) -> None:
    job = reading.job
    assert job is not None, reading.why_not
    assert job.linear == linear and decode_job(encode_job(job)) == job
    assert [part.job for part in reading.parts] == [job]
    assert any(form.is_any_of(*LINEAR) for form in reading.formats) == linear
    assert reading.weights is not None and reading.weights.complete
    assert reading.weights.result.tobytes() == truth.weights
    found = [c for c in reading.collectives if c.meaning == "gradient bucket"]
    assert [c.result.tobytes() for c in found] == [each.result for each in truth.gradients]


@pytest.mark.parametrize("version", [pytest.param((2, 9), marks=pytest.mark.nightly), (2, 10)])
def test_order_of_lines_is_told_by_what_they_hold(version: tuple[int, int], tmp_path: Path) -> None:
    truth, reading = read(replace(OLD, version=version), tmp_path)
    assert_read(truth, reading, linear=version < (2, 10))


@pytest.mark.parametrize("version", [(2, 9), (2, 11)])
def test_order_that_nothing_tells_must_be_stated(version: tuple[int, int], tmp_path: Path) -> None:
    options = replace(SMALL_IN_LL, version=version)
    _, open_one = read(options, tmp_path)
    assert open_one.job is None and not any(part.job for part in open_one.parts)
    assert open_one.weights is not None and not open_one.weights.complete
    assert LL128_ORDER_OPEN() in open_one.why_not
    assert not any(c.complete for c in open_one.collectives if c.protocol == "LL128")
    assert_read(*read(options, tmp_path, version < (2, 10)), linear=version < (2, 10))


def test_release_that_is_stated_is_not_believed_against_the_frames(tmp_path: Path) -> None:
    assert_read(*read(replace(OLD, version=(2, 19)), tmp_path, True), linear=False)


@pytest.mark.parametrize("linear", [None, False])
def test_order_is_assumed_where_no_clear_to_send_is_seen(
    linear: bool | None, tmp_path: Path
) -> None:
    made = generate(replace(SMALL_IN_LL, version=(2, 19)), tmp_path)
    tape = read_capture_files(made.files)
    told = read_stream(tape.flows, tape.messages).flows
    granting = {flow.seen.key for flow in told if flow.role == "cts"}
    flows = [flow for flow in tape.flows if flow.key not in granting]
    messages = [message for message in tape.messages if message.flow not in granting]
    reading = read_stream(flows, messages, stated=OperatorStatement(linear=linear))
    lines = [c for c in reading.collectives if c.protocol == "LL128"]
    assert granting and lines and reading.job is not None
    assumed = [one for one in reading.job.assumed if one.is_any_of(LL128_ORDER_ASSUMED)]
    assert bool(assumed) == (linear is None)
    assert all(assumed[0] in c.assumed for c in lines) if assumed else True


@pytest.mark.parametrize(
    "options", [SHORT, pytest.param(replace(OLD, channels=2, mtu=4096), marks=pytest.mark.nightly)]
)
def test_chain_places_every_byte_of_old_lines(options: Options, shm: Path, tmp_path: Path) -> None:
    made = generate(options, tmp_path)
    chain = Chain(tmp_path, shm / "memory", made.files, 512)
    found = played(chain, 256)
    chain.close()
    buckets = [list(range(len(SHAPES)))]
    for step in range(options.steps):
        buckets = made.truth.buckets if step else buckets
        reduced = [each.result for each in made.truth.gradients if each.step == step]
        parts: dict[int, bytes] = {}
        for bucket, result in zip(buckets, reduced, strict=True):
            at = 0
            for index in bucket:
                size = 4 * prod(SHAPES[index])
                parts[index] = result[at : at + size]
                at += size
        assert found[step + 1] == b"".join(parts[index] for index in sorted(parts)), step


def test_release_of_a_job_file_tells_the_order() -> None:
    job = {"source": [{"file": "x"}], "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    for version in ("2.9", "2.9.9", "2.8.4", "2.10", "2.21.5"):
        told = job_from(job | {"nccl": version}).stated
        assert told is not None and told.linear == has_linear_ll128(version)
    assert [has_linear_ll128(v) for v in ("2.9.9", "2.10.3", "2.30")] == [True, False, False]
    assert job_from(job).stated is None
    assert msgspec.json.decode(
        msgspec.json.encode(OperatorStatement(linear=True)), type=OperatorStatement
    ).linear
