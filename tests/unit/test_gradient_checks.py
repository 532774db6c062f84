"""Gathered units are held against what they were a step before."""

from __future__ import annotations

import numpy as np

from flowcheck.findings.catalog.lost_steps import UNIT_CHANGED
from flowcheck.findings.finding import Finding
from flowcheck.stages.extraction.gradient_checks import GatheredUnitCheck
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.training_job.learned_job import FollowedData, LearnedJob, Parameter


def job(dtype: str | None) -> LearnedJob:
    units = tuple(
        Parameter(sizes=(size,), strides=(1,), element_bytes=4, dtype=dtype) for size in (500, 500)
    )
    return LearnedJob(
        era=NcclEra.V2_29,
        kind=FollowedData.PARAMETERS,
        communicators=(),
        edges=(),
        parameters=units,
        first_buckets=((0,), (1,)),
        buckets=((0,), (1,)),
        first=(),
        each=(),
    )


def unit_of(found: Finding | None) -> object:
    assert found is not None and found.is_any_of(UNIT_CHANGED)
    return found.arguments["unit"]


def test_what_takes_another_units_place_is_told() -> None:
    draw = np.random.default_rng(1)
    one, two = (draw.standard_normal(500).astype("<f4") for _ in range(2))
    steady = GatheredUnitCheck(job("float32"))
    for step in range(3):
        moved = np.concatenate([one, two]) * np.float32(1 + step / 100)
        assert not steady.problem(moved.view(np.uint8))
    swapped = np.concatenate([two, one])
    assert unit_of(steady.problem(swapped.view(np.uint8))) == 0
    gradient = np.concatenate([one, draw.standard_normal(500).astype("<f4")])
    assert unit_of(steady.problem(gradient.view(np.uint8))) == 1
    back = np.concatenate([one, two])
    assert not steady.problem(back.view(np.uint8))
    untold = GatheredUnitCheck(job(None))
    assert not untold.problem(back.view(np.uint8)) and not untold.problem(swapped.view(np.uint8))
