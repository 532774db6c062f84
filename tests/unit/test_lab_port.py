"""The lab's transport on a wire inside one process, under the sanitizers (support/storm.c)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support import sanitized

SUPPORT = Path(sanitized.__file__).parent
SOURCES = sanitized.REPOSITORY / "dpdk_ext"
ABOVE_THE_PORT = ("net", "frame", "request", "respond", "connection", "error")


pytestmark = pytest.mark.xdist_group("storm")
"""Built once."""
QUICK = 4
"""Seeds of the quick suite; the others are for the night."""


def seeds(count: int) -> list[object]:
    return [
        seed if seed <= QUICK else pytest.param(seed, marks=pytest.mark.nightly)
        for seed in range(1, count + 1)
    ]


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not sanitized.runtimes():
        pytest.skip("no address sanitizer: install gcc's libasan and libubsan")
    program = Path(tmp_path_factory.mktemp("storm")) / "storm"
    folders = [f"-I{folder}" for folder in (SOURCES / "lab", SOURCES / "core", SUPPORT)]
    sources = [*SUPPORT.glob("storm*.c"), *(SOURCES / f"lab/fcl_{n}.c" for n in ABOVE_THE_PORT)]
    subprocess.run(
        ["gcc", "-std=gnu11", *sanitized.FLAGS, *folders, "-o", program, *sources, "-lz"],
        check=True,
        timeout=120,
    )
    return program


def run(storm: Path, *words: str) -> dict[str, int]:
    done = subprocess.run([storm, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("seed", seeds(12))
def test_bytes_arrive_over_a_wire_that_loses_repeats_swaps_and_damages(
    storm: Path, seed: int
) -> None:
    counted = run(storm, "honest", str(seed), "300")
    assert counted["came"] == 300
    assert counted["refusals"] == 0
    # The wire was as bad as it says: these are the ways in which a connection gets over it.
    assert counted["icrc_bad"] > 50
    assert counted["duplicates"] > 20
    assert counted["naks"] > 100
    assert counted["retransmitted"] > 500


@pytest.mark.parametrize("seed", seeds(8))
def test_frames_with_a_right_icrc_that_lie_touch_no_memory_but_the_granted(
    storm: Path, seed: int
) -> None:
    counted = run(storm, "hostile", str(seed), "100000")
    assert counted["damaged"] > 500
    assert counted["refusals"] > 100
