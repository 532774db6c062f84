"""Frozen parameters and buffers among the initial weights, by NCCL's sizes: told by a stated model,
else the job is refused with the key to state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.netib import Options, generate
from support.netib.shapes import SMALL, WIDE

from flowcheck.findings.catalog.refused_trainers import FROZEN_OPEN
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.replica.param_layout import contiguous_stride as contiguous
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.training_job.learned_job import Parameter
from flowcheck.wire.training_job.operator_statements import OperatorStatement, StatedTensor

FIRST = ((0, 7, 96),)
MIDDLE = ((0, 40, 40), (2, 3), (3, 1))
LAST = ((5, 33, 7), (5, 7))
MOST = ((0, 80, 100), (1, 41))
"""More than the trained ones: nothing of the sizes says what an element has."""
SCALAR = ((1,),)


def parameter(size: tuple[int, ...]) -> Parameter:
    return Parameter(sizes=size, strides=contiguous(size), element_bytes=4, dtype="float32")


def stated(options: Options) -> OperatorStatement:
    """What a factory would tell."""
    everything: list[StatedTensor] = []
    for place in range(len(options.shapes) + 1):
        frozen = [tuple(size) for at, *size in options.frozen if at == place]
        everything += [
            StatedTensor(name=f"f{place}.{n}", wire=parameter(s), has_gradient=False)
            for n, s in enumerate(frozen)
        ]
        everything += [
            StatedTensor(name=f"p{place}", wire=parameter(s))
            for s in options.shapes[place : place + 1]
        ]
    if options.buffers:
        wire = parameter((options.buffers,))
        everything.append(StatedTensor(name="b", wire=wire, has_gradient=False, buffer=True))
    return OperatorStatement(
        parameters=tuple(map(parameter, options.shapes)), module_tensors=tuple(everything)
    )


def read(
    options: Options, folder: Path, model: OperatorStatement | None
) -> tuple[Reading, bytes, bytes]:
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages, stated=model)
    return reading, made.truth.weights, made.truth.beside


CASES = {
    "ll first": Options(shapes=SMALL, frozen=FIRST),
    "ll scalar": Options(shapes=SMALL, frozen=SCALAR, version=(2, 30)),
    "ll most": Options(shapes=SMALL, frozen=MOST, channels=2, version=(2, 23)),
    "ll128 middle": Options(
        ranks=3, protocol="LL128", shapes=SMALL, channels=2, frozen=MIDDLE, version=(2, 23)
    ),
    "ll128 last buffers": Options(
        ranks=4, protocol="LL128", mix=((1024, "LL"),), shapes=SMALL, frozen=LAST, buffers=96
    ),
    "simple middle": Options(
        ranks=4, protocol="Simple", shapes=WIDE, channels=4, frozen=MIDDLE[:2], version=(2, 30)
    ),
    "simple buffers unused": Options(
        protocol="Simple", shapes=SMALL, frozen=MIDDLE, buffers=70, version=(2, 26),
        find_unused=True, caps_bytes=(6000, 6000),
    ),
    "ll128 one number": Options(
        ranks=2, protocol="LL128", shapes=((), *SMALL), frozen=MIDDLE, version=(2, 29), buffers=9
    ),
}  # fmt: skip
BY_DAY = ("ll128 middle", "simple buffers unused", "ll most")


def marked(names: Iterable[str]) -> list[Any]:
    """Those that others cover run at night."""
    night = pytest.mark.nightly
    return [n if n in BY_DAY else pytest.param(n, marks=night) for n in names]


@pytest.mark.parametrize("name", marked(CASES))
def test_frozen_parameters_are_told_by_the_stated_model(name: str, tmp_path: Path) -> None:
    options = CASES[name]
    reading, weights, beside = read(options, tmp_path, stated(options))
    assert reading.job is not None and reading.weights is not None, reading.why_not
    assert reading.weights.complete and reading.weights.beside is not None
    assert reading.weights.result.tobytes() == weights
    assert reading.weights.beside.tobytes() == beside
    assert [p.sizes for p in reading.job.parameters] == list(options.shapes)


@pytest.mark.parametrize("name", marked(["ll first", "ll most", "ll128 middle", "simple middle"]))
def test_without_a_stated_model_the_key_to_state_is_named(name: str, tmp_path: Path) -> None:
    reading, *_ = read(CASES[name], tmp_path, None)
    assert reading.job is None
    assert reading.why_not[0].is_any_of(FROZEN_OPEN), reading.why_not


def test_another_model_than_the_trainers_is_not_taken(tmp_path: Path) -> None:
    options = CASES["ll first"]
    other = stated(replace(options, frozen=((0, 7, 97),)))
    reading, *_ = read(options, tmp_path, other)
    assert reading.job is None and reading.why_not[0].is_any_of(FROZEN_OPEN)


def test_buffers_that_are_not_broadcast_are_not_looked_for(tmp_path: Path) -> None:
    """broadcast_buffers=False: the start-up sends parameters alone."""
    options = CASES["ll first"]
    reading, weights, beside = read(options, tmp_path, stated(replace(options, buffers=33)))
    assert reading.job is not None and reading.weights is not None, reading.why_not
    assert reading.weights.result.tobytes() == weights
    assert reading.weights.beside is not None and reading.weights.beside.tobytes() == beside
