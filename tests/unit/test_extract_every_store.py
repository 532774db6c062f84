"""An extractor killed before every single one of its stores ends where an undisturbed one does."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import kill_points
from support.extract_kills import NIGHTLY, SCENES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := kill_points.lacks():
        pytest.skip(why)
    # The folder that all test processes of one run share.
    return kill_points.build(tmp_path_factory.getbasetemp().parent / "kill-points")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.nightly if n in NIGHTLY else ()) for n in SCENES],
)
def test_killed_before_any_store_it_ends_alike(build: Path, name: str) -> None:
    assert "Explored" in kill_points.run(build, "support.extract_kills", name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCENES)
def test_killed_twice_it_ends_alike(build: Path, name: str) -> None:
    words = (name, "4", "3")
    assert "Explored" in kill_points.run(build, "support.extract_kills", *words, limit_s=390)
