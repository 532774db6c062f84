"""What is installed: a wheel holds the files that the program reads beside its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
@pytest.mark.timeout(500)
def test_an_installed_wheel_finds_its_templates_without_the_source_tree(tmp_path: Path) -> None:
    """It compiles the C as an installation does."""

    def run(*words: str | Path, where: Path) -> str:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=where,
            env=environment | {"PYTHONPATH": str(tmp_path / "site")},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, where=REPOSITORY)
    (wheel,) = tmp_path.glob("*.whl")
    install = ("-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "site")
    run(*install, wheel, where=tmp_path)
    place = run("-c", "import flowcheck; print(flowcheck.__file__)", where=tmp_path)
    assert Path(place.strip()).is_relative_to(tmp_path / "site")
    listed = run("-m", "flowcheck", "switch", "list", where=tmp_path)
    templates = {path.stem for path in (REPOSITORY / "switch_configs").glob("*.j2")}
    assert {line.split(" ")[0] for line in listed.splitlines()} >= templates
    told = run(
        *("-m", "flowcheck", "switch", "render", "--bare", "--os", "eos"),
        *("--source", "Ethernet1/1", "--monitor", "Ethernet32/1"),
        where=tmp_path,
    )
    assert "monitor session flowcheck source Ethernet1/1 rx" in told
