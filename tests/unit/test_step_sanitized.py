"""The optimizer's step under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import sanitized


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_step_reads_and_writes_only_what_is_its_own(tmp_path: Path) -> None:
    if not sanitized.runtimes():
        pytest.skip("no address sanitizer: install gcc's libasan and libubsan")
    where = sanitized.build(tmp_path / "sanitized")
    tests = ["tests/unit/test_onepass.py", "tests/unit/test_step_kernels.py"]
    done = sanitized.pytest_on(where, [*tests, "-k", "not torchs_own and not left_out_of"])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
