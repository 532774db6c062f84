"""An extractor killed before every single one of its stores ends where an undisturbed one does."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import kill_points
from support.extract_kills import NIGHTLY, SCENES
from support.follow_kills import LARGE
from support.follow_kills import SCENES as FOLLOWED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := kill_points.lacks():
        pytest.skip(why)
    # The folder that all test processes of one run share.
    return kill_points.build(tmp_path_factory.getbasetemp().parent / "kill-points")


BY_DAY = {name: 61 if name.startswith("window") else 7 for name in SCENES if name not in NIGHTLY}
"""One store of so many is tried; by night each."""


@pytest.mark.parametrize(
    ("name", "every"),
    [
        *BY_DAY.items(),
        *(pytest.param(name, 1, marks=pytest.mark.nightly) for name in SCENES),
    ],
)
def test_killed_before_any_store_it_ends_alike(build: Path, name: str, every: int) -> None:
    words = (name, "0", str(every))
    assert "Explored" in kill_points.run(build, "support.extract_kills", *words, limit_s=390)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCENES)
def test_killed_twice_it_ends_alike(build: Path, name: str) -> None:
    words = (name, "4", "3")
    assert "Explored" in kill_points.run(build, "support.extract_kills", *words, limit_s=390)


@pytest.mark.parametrize(
    ("large", "every"),
    [
        *((False, 41), (True, 509)),
        *(pytest.param(*words, marks=pytest.mark.nightly) for words in ((False, 1), (True, 17))),
    ],
)
def test_whatever_becomes_of_a_job_it_ends_alike(build: Path, large: bool, every: int) -> None:
    """Plans that are left, lost steps, full staging, queue pairs, the job's next life."""
    names = [name for name in FOLLOWED if (name in LARGE) == large]
    words = (",".join(names), "0", str(every))
    said = kill_points.run(build, "support.follow_kills", *words, limit_s=390)
    assert said.count("Explored") == len(names)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FOLLOWED)
def test_whatever_becomes_of_a_job_killed_twice_it_ends_alike(build: Path, name: str) -> None:
    words = (name, "2", "1" if name not in LARGE else "2")
    assert "Explored" in kill_points.run(build, "support.follow_kills", *words, limit_s=390)
