"""`flowcheck lab cost` on a tiny job: every case runs, and is what it says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flowcheck.lab.cluster import network_namespaces

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.skipif(
        not {0, 1} <= os.sched_getaffinity(0), reason="trainers and the rest need a CPU each"
    ),
]
STEPS, WARM_UP = 6, 2
TINY = ("--layers", "1", "--width", "32", "--heads", "2", "--context", "16")


@pytest.mark.slow
@pytest.mark.nightly
def test_every_case_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    name = f"c{os.getpid()}"
    command = [sys.executable, "-m", "flowcheck", "lab", "cost", "--json", "--rounds", "1"]
    command += ["--steps", str(STEPS), "--warm-up", str(WARM_UP), "--name", name]
    command += ["--out", str(tmp_path / "out"), "--", *TINY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    runs = {one["case"]: one for one in found["runs"]}
    assert list(runs) == ["none", "flowcheck", "torch.save", "async_save", "no mirror"]
    assert all(len(one["seconds"]) == STEPS - WARM_UP for one in runs.values())
    assert all(one["trainers_cpu_s"] > 0 for one in runs.values())
    assert [case for case, one in runs.items() if one["copies"] == 0] == ["no mirror"]
    assert runs["flowcheck"]["followed"] == STEPS
    assert runs["flowcheck"]["services_cpu_s"] > 0
    assert runs["none"]["services_cpu_s"] == 0
    assert found["figures"][0]["time_ratio"] == 1.0
    assert network_namespaces.existing(f"fcl-{name}-") == []
