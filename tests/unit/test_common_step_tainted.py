"""The common step of several rings: one that is exact in all of them, before one that is newer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support.refused_as import refused_as
from support.two_rings import SHAPES, TwoRings

from flowcheck.findings.catalog.refused_restores import ALL_TAINTED
from flowcheck.ops.lifecycle.common_step_of_jobs import common_step_to_keep
from flowcheck.ops.restore import multi_job_restore, step_lookup
from flowcheck.ops.restore.step_lookup import FoundStep
from flowcheck.stages.run_directory.run_dir import RunDir

STEPS = 4
LOST = (8, 72)
"""Bytes of a gradient."""


@pytest.fixture(autouse=True)
def nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_lookup, "settle_chain", lambda run, config: None)


@contextmanager
def stepped(
    folder: Path, lossy: tuple[int | None, int | None], **options: int
) -> Iterator[TwoRings]:
    """Two rings at STEPS. lossy: the step of each that lacked bytes."""
    rings = TwoRings(folder, **options)
    for step in range(1, STEPS + 1):
        for ring, at in zip(SHAPES, lossy, strict=True):
            rings.take(ring, [LOST] if step == at else ())
    try:
        yield rings
    finally:
        rings.close()


def runs_of(rings: TwoRings) -> list[RunDir]:
    return [rings.own(ring) for ring in SHAPES]


def found(rings: TwoRings, *, allow_tainted: bool) -> list[FoundStep]:
    return multi_job_restore._found(runs_of(rings), allow_tainted=allow_tainted)


@pytest.mark.parametrize(
    ("lossy", "exact"), [((4, 3), 2), ((None, 4), 3), ((2, None), 1), ((None, None), 4)]
)
def test_the_newest_step_without_a_loss_in_any_ring_is_given_and_kept(
    lossy: tuple[int | None, int | None], exact: int, tmp_path: Path
) -> None:
    with stepped(tmp_path, lossy) as rings:
        for ring, one in zip(SHAPES, found(rings, allow_tainted=False), strict=True):
            assert one.snapshot.step == exact == rings.newest_exact
            assert not one.snapshot.tainted
            if any(lossy):
                assert one.newer_tainted == tuple(range(exact + 1, STEPS + 1))
            right = rings.truth[ring][exact].parameters
            pairs = zip(one.snapshot.parameters.values(), right, strict=True)
            assert all(torch.equal(own, value) for own, value in pairs)
        assert {one.snapshot.step for one in found(rings, allow_tainted=True)} == {STEPS}
        settings = rings.run.settings()
        assert common_step_to_keep(settings, runs_of(rings)) == (exact, None)


def test_where_every_step_is_tainted_in_a_ring_the_newest_is_kept_and_given_if_allowed(
    tmp_path: Path,
) -> None:
    with stepped(tmp_path, (1, None), keep_bytes=0) as rings:
        assert common_step_to_keep(rings.run.settings(), runs_of(rings)) == (STEPS, None)
        with refused_as(ALL_TAINTED, steps=(STEPS - 1, STEPS)):
            found(rings, allow_tainted=False)
        assert [one.snapshot.step for one in found(rings, allow_tainted=True)] == [STEPS] * 2
