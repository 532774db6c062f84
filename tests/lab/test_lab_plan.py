"""Plans of scripts nobody tuned anything for, against what their real processes send."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import preloaded

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]
SCRIPTS = Path(__file__).parent / "scripts"
STEPS = 5
MODELS = {
    "variants.py": (
        "nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), "
        "nn.Linear(60, 9))"
    ),
    "cnn_batchnorm.py": (
        "nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), "
        "nn.Conv2d(12, 20, 3), nn.BatchNorm2d(20), nn.ReLU(), nn.Flatten(), "
        "nn.Linear(20 * 16, 10))"
    ),
}
"""What each script builds."""


def flowcheck(*words: str | Path) -> tuple[int, str]:
    done = preloaded.run(
        words,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def held(script: str, capture: Path, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and verdict of the plan of a script's model."""
    net = folder / "net.py"
    net.write_text(f"from torch import nn\ndef make():\n    return {MODELS[script]}\n")
    code, told = flowcheck("plan", f"{net}:make", *words, "--check", capture, "--json")
    found: dict[str, Any] = json.loads(told)["check"]
    return code, found


@pytest.mark.parametrize(
    ("script", "way", "lab", "words"),
    [
        ("variants.py", "static", ["--protocol", "LL"], ["--static-graph"]),
        ("variants.py", "unused", ["--protocol", "Simple"], ["--find-unused-parameters"]),
        ("variants.py", "fp16", ["--channels", "2"], ["--hook", "fp16"]),
        ("cnn_batchnorm.py", "", ["--hosts", "3"], ["--world", "3"]),
        ("cnn_batchnorm.py", "unused", [], ["--find-unused-parameters"]),
    ],
)
def test_real_processes_do_as_planned(
    script: str, way: str, lab: list[str], words: list[str], tmp_path: Path
) -> None:
    out, digests = tmp_path / "job", tmp_path / "digests"
    made = ["--name", f"pl{os.getpid() % 10**6}", "--script", str(SCRIPTS / script)]
    code, told = flowcheck("lab", "record", *made, "--out", out, *lab, "--", digests, *way.split())
    assert code == 0, told
    cap = ["--bucket-cap-mb", "0.01"] if script == "variants.py" else []
    capture = out.with_suffix(".pcapng")
    code, found = held(script, capture, tmp_path, *cap, *words)
    assert (code, found["difference"], found["iterations"]) == (0, "", STEPS)
    # The barrier at the end is the script's own.
    assert sum(times for _, times in found["beside"]) == 1
    without = [w for w in words if w.isdigit() or w == "--world"]
    if without != words:
        code, found = held(script, capture, tmp_path, *cap, *without)
        assert code == 1, found
