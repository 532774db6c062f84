"""The C under the address and undefined-behaviour sanitizers, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import sanitized

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]
"""By day the fuzzer alone runs with sanitizers, over the parser and the assembler: the build takes
a minute."""


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
    files = ("test_ll.py", "test_gradient_shard.py", "test_extract.py", "test_extract_refusals.py")
    passes(build, [*(f"tests/unit/{one}" for one in files), "-k", "not left_out_of"])


def test_steps_and_scattered_bytes_read_and_write_only_what_is_their_own(build: Path) -> None:
    steps = ["tests/unit/test_c_kernel_args.py", "tests/unit/test_step_kernels.py"]
    passes(build, ["tests/property/test_scatter.py", *steps, "-k", "not torchs_own"])


def test_what_is_written_directly_into_files_is_read_and_written_within_its_blocks(
    build: Path,
) -> None:
    files = ["tests/unit/test_direct_io_stress.py", "tests/unit/test_direct_io.py"]
    passes(build, [*files, "tests/property/test_sha256.py"])
