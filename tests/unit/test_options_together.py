"""DDP's options together: hooks and several dtypes beside find_unused_parameters and static_graph,
and two dtypes of one size; judged by a generator that shares nothing."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from support.found_codes import codes
from support.netib import Options, Truth, generate
from support.refused_as import refused_as

from flowcheck.config import job_from
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import DTYPES_OF_ONE_SIZE
from flowcheck.findings.catalog.refused_trainers import (
    SEVERAL_DTYPES_BROADCAST,
    UNUSED_OPEN,
    WEIGHTS_IN_PARTS,
)
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.stages.job_learning.proved_job import has_consistent_buckets
from flowcheck.stages.job_state.model_layout import layout_of
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.training_job.learned_job import Parameter, decode_job, encode_job
from flowcheck.wire.training_job.operator_statements import OperatorStatement

SHAPES = ((96, 40), (96,), (30, 96), (30,), (7, 30))
MIXED = ("bfloat16", "float32", "bfloat16", "float32", "bfloat16")
HALVES = ("bfloat16", "float16", "bfloat16", "float16", "bfloat16")
APART = ("float32", "float32", "float32", "bfloat16", "bfloat16")
THREE = ("bfloat16", "float16", "float32", "float16", "bfloat16")
ALIKE = Options(
    shapes=SHAPES, protocol="Simple", channels=2, version=(2, 23), caps_bytes=(6000, 6000)
)
UNUSED = replace(ALIKE, find_unused=True)
STATIC = replace(ALIKE, static_graph=True)
LINES = {"protocol": "LL", "ranks": 4, "version": (2, 30)}
UNSTATED = {
    "hook, unused": replace(UNUSED, compress="float16"),
    "hook, unused, LL": replace(UNUSED, compress="bfloat16", **LINES),
    "hook, static": replace(STATIC, compress="float16"),
    "dtypes, static": replace(STATIC, dtypes=MIXED),
    "dtypes, static, LL": replace(STATIC, dtypes=MIXED, **LINES),
    "dtypes, hook, static": replace(STATIC, dtypes=MIXED, compress="bfloat16"),
}
STATED = {
    "dtypes, unused": replace(UNUSED, dtypes=MIXED),
    "dtypes, unused, LL": replace(UNUSED, dtypes=MIXED, **LINES),
    "dtypes, hook, unused": replace(UNUSED, dtypes=MIXED, compress="float16"),
    "dtypes apart, hook, unused": replace(UNUSED, dtypes=APART, compress="float16"),
    "halves": replace(ALIKE, dtypes=HALVES),
    "halves, LL": replace(ALIKE, dtypes=HALVES, **LINES),
    "halves, unused": replace(UNUSED, dtypes=HALVES),
    "halves, static": replace(STATIC, dtypes=HALVES),
    "three": replace(ALIKE, dtypes=THREE),
    "three, hook, unused": replace(UNUSED, dtypes=THREE, compress="float16"),
}
CASES = [(o, False) for o in UNSTATED.values()] + [(o, True) for o in STATED.values()]


def model_of(options: Options) -> OperatorStatement:
    dtypes = options.dtypes or (options.dtype,) * len(options.shapes)
    made = [
        Parameter(
            sizes=shape,
            strides=tuple(prod(shape[at + 1 :]) for at in range(len(shape))),
            element_bytes=getattr(torch, dtype).itemsize,
            dtype=dtype,
        )
        for shape, dtype in zip(options.shapes, dtypes, strict=True)
    ]
    return OperatorStatement(parameters=tuple(made))


def read(
    options: Options, folder: Path, stated: OperatorStatement | None = None
) -> tuple[Truth, Reading]:
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    return made.truth, read_stream(tape.flows, tape.messages, stated=stated)


@pytest.mark.parametrize(("options", "stated"), CASES, ids=[*UNSTATED, *STATED])
def test_options_are_followed_together(options: Options, stated: bool, tmp_path: Path) -> None:
    model = model_of(options)
    truth, reading = read(options, tmp_path, model if stated else None)
    learned = reading.job
    assert learned is not None, reading.why_not
    told = [(p.element_bytes, p.dtype) for p in learned.parameters]
    assert told == [(p.element_bytes, p.dtype if stated else None) for p in model.parameters]
    assert learned.gradient_element_bytes == (2 if options.compress else 0)
    buckets = tuple(map(tuple, truth.buckets))
    assert learned.buckets == (*buckets, *[(len(SHAPES),)] * options.find_unused)
    assert len(learned.first_iterations) == 1 + options.static_graph
    assert has_consistent_buckets(learned) and decode_job(encode_job(learned)) == learned
    weights = reading.weights
    assert weights is not None and weights.complete
    assert weights.result.tobytes() == truth.weights
    found = [c.result.tobytes() for c in reading.collectives if c.meaning == "gradient bucket"]
    assert found == [each.result for each in truth.gradients]
    if stated:
        compress = {"gradient_dtype": options.compress} if options.compress else {}
        optimizer = {"name": "sgd", "learning_rate": 0.1}
        tree = {"source": [{"file": "x"}], "optimizer": optimizer, "model": compress}
        layout = layout_of(learned, job_from(tree))
        assert tuple(map(layout.dtype_of, layout.parameters)) == options.dtypes


@pytest.mark.parametrize("name", ["dtypes, unused", "halves", "halves, static", "three"])
def test_what_must_be_stated_is_named(name: str, tmp_path: Path) -> None:
    _, reading = read(STATED[name], tmp_path)
    assert reading.job is None
    [why] = codes(reading.why_not[:1]) - {UNUSED_OPEN.code}
    assert why == (WEIGHTS_IN_PARTS if "unused" in name else SEVERAL_DTYPES_BROADCAST).code


@pytest.mark.parametrize(
    ("own", "stated"),
    [
        (replace(ALIKE, dtype="bfloat16"), MIXED),
        (replace(ALIKE, compress="float16"), APART),
        (replace(UNUSED, compress="float16"), APART),
        (replace(UNUSED, dtype="bfloat16"), MIXED),
        (replace(ALIKE, dtypes=MIXED), THREE),
        (replace(ALIKE, dtypes=MIXED), HALVES),
        (replace(UNUSED, dtypes=HALVES), MIXED),
        (replace(ALIKE, dtypes=HALVES), MIXED),
    ],
)
def test_dtypes_that_are_not_the_trainers_change_nothing(
    own: Options, stated: tuple[str, ...], tmp_path: Path
) -> None:
    _, alone = read(own, tmp_path)
    _, beside = read(own, tmp_path, model_of(replace(own, dtypes=stated)))
    assert beside.job == alone.job and beside.why_not == alone.why_not
    assert (alone.job is None) == (own.dtypes == HALVES)


@pytest.mark.parametrize("protocol", ["LL", "Simple"])
def test_map_whose_place_eras_share_does_not_choose_one(protocol: str, tmp_path: Path) -> None:
    """So few bytes lie alike in releases that part larger tensors otherwise."""
    shapes = ((40, 29), (8, 48), (45,), (11,))
    options = replace(STATIC, shapes=shapes, channels=1, protocol=protocol, seed=22)
    truth, reading = read(options, tmp_path)
    assert reading.job is not None, reading.why_not
    assert reading.job.buckets == tuple(map(tuple, truth.buckets))


def test_weights_before_buffers_are_whole_where_no_bucket_holds_all(tmp_path: Path) -> None:
    truth, reading = read(replace(UNUSED, buffers=18), tmp_path)
    assert len(truth.buckets) > 1 and reading.job is not None
    assert reading.weights is not None and reading.weights.complete
    assert reading.weights.result.tobytes() == truth.weights


def test_dtypes_of_one_size_are_a_factorys() -> None:
    model = {"dtypes": ["bfloat16", "float16"]}
    optimizer = {"name": "sgd", "learning_rate": 0.1}
    with refused_as(DTYPES_OF_ONE_SIZE, kind=ConfigError):
        job_from({"source": [{"file": "x"}], "optimizer": optimizer, "model": model})
