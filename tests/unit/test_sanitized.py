"""The C under the address and undefined-behaviour sanitizers, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import sanitized

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not sanitized.runtimes():
        pytest.skip("no address sanitizer: install gcc's libasan and libubsan")
    return sanitized.build(tmp_path_factory.mktemp("sanitized") / "build")


def passes(build: Path, words: list[str]) -> None:
    done = sanitized.pytest_on(build, words)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


def test_placement_and_steps_read_and_write_only_what_is_their_own(build: Path) -> None:
    placement = [
        "unit/test_ll.py",
        "unit/test_shard.py",
        "unit/test_extract.py",
        "unit/test_extract_refusals.py",
    ]
    steps = ["unit/test_onepass.py", "unit/test_step_kernels.py"]
    tests = [f"tests/{one}" for one in (*placement, "property/test_scatter.py", *steps)]
    passes(build, [*tests, "-k", "not torchs_own and not left_out_of"])
