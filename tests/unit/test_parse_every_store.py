"""A parser killed before every single one of its stores ends where an undisturbed one does, and
misleads nobody who reads meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import kill_points
from support.parse_kills import NIGHTLY, SCENES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := kill_points.lacks():
        pytest.skip(why)
    # The folder that all test processes of one run share.
    return kill_points.build(tmp_path_factory.getbasetemp().parent / "kill-points")


@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.nightly)])
def test_killed_before_any_store_it_ends_alike(build: Path, every: int) -> None:
    """Once more at a store of every repetition: most of its first stores take back what the
    killed one left."""
    daily = [name for name in SCENES if name not in NIGHTLY]
    words = (",".join(daily), "1", str(every))
    said = kill_points.run(build, "support.parse_kills", *words, limit_s=390)
    assert said.count("Explored") == len(daily)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCENES)
def test_killed_twice_it_ends_alike(build: Path, name: str) -> None:
    words = (name, "8", "149" if name in NIGHTLY else "1")
    assert "Explored" in kill_points.run(build, "support.parse_kills", *words, limit_s=390)


@pytest.mark.nightly
def test_killed_at_any_store_and_at_any_of_the_repetition_it_ends_alike(build: Path) -> None:
    words = ("two-in-turn", "-1")
    assert "Explored" in kill_points.run(build, "support.parse_kills", *words, limit_s=390)
