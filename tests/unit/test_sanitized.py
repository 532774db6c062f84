"""The C under the address and undefined-behaviour sanitizers, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import sanitized

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("sanitized")]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not sanitized.runtimes():
        pytest.skip("no address sanitizer: install gcc's libasan and libubsan")
    return sanitized.build(tmp_path_factory.mktemp("sanitized") / "build")


def passes(build: Path, words: list[str]) -> None:
    done = sanitized.pytest_on(build, words)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


def test_placement_reads_and_writes_only_what_is_its_own(build: Path) -> None:
    passes(
        build,
        [
            "tests/unit/test_ll.py",
            "tests/unit/test_shard.py",
            "tests/unit/test_extract.py",
            "tests/property/test_scatter.py",
        ],
    )


def test_a_step_reads_and_writes_only_what_is_its_own(build: Path) -> None:
    tests = ["tests/unit/test_onepass.py", "tests/unit/test_step_kernels.py"]
    passes(build, [*tests, "-k", "not torchs_own and not left_out_of"])
