"""A node's files are put in place once, and taken away as far as they are ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flowcheck.config import job_from

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
UNIT = "etc/systemd/system/flowcheck@.service"


def install(verb: str, root: Path) -> str:
    words = [str(SCRIPTS / "node" / "install-node"), verb, "--root", str(root)]
    done = subprocess.run(
        [*words, "--prefix", sys.prefix], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_installed_twice_is_installed_once_and_undone_is_gone(tmp_path: Path) -> None:
    assert "would be written" in install("show", tmp_path) and not files(tmp_path)
    install("install", tmp_path)
    once = files(tmp_path)
    assert UNIT in once and b"@FLOWCHECK@" not in once[UNIT]
    assert "written" not in install("install", tmp_path) and files(tmp_path) == once
    install("undo", tmp_path)
    assert not files(tmp_path)


def test_what_the_operator_wrote_is_neither_written_over_nor_removed(tmp_path: Path) -> None:
    install("install", tmp_path)
    (tmp_path / "etc/flowcheck/job.toml").write_text("mine")
    (tmp_path / UNIT).write_text("changed")
    assert "somebody's own" in install("install", tmp_path)
    install("undo", tmp_path)
    assert files(tmp_path) == {"etc/flowcheck/job.toml": b"mine", UNIT: b"changed"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_what_is_installed_is_a_unit_to_systemd_and_a_job_to_flowcheck(tmp_path: Path) -> None:
    install("install", tmp_path)
    unit = tmp_path / "flowcheck@job.service"
    shutil.copy(tmp_path / UNIT, unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    if (Path(sys.prefix) / "bin" / "flowcheck").exists():
        assert done.returncode == 0 and not done.stderr
    job = job_from(tomllib.loads((tmp_path / "etc/flowcheck/examples/job.toml").read_text()))
    assert job.source[0].pci == "0000:3b:00.0"


def test_hugepages_are_reserved_once_and_given_back_on_a_made_up_root(tmp_path: Path) -> None:
    pool = tmp_path / "sys/kernel/mm/hugepages/hugepages-2048kB"
    for folder in (pool, tmp_path / "proc", tmp_path / "run"):
        folder.mkdir(parents=True)
    (pool / "nr_hugepages").write_text("3\n")
    (pool / "free_hugepages").write_text("3\n")
    (tmp_path / "proc/mounts").write_text("")

    def hugepages(*words: str) -> str:
        done = subprocess.run(
            [str(SCRIPTS / "hugepages"), *words], env={**os.environ, "SYSROOT": str(tmp_path)},
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout

    assert "made-up root" in hugepages()
    assert "nr_hugepages: 3 -> 512" in hugepages("reserve", "512")
    assert "->" not in hugepages("reserve", "100"), "there are enough"
    assert (pool / "nr_hugepages").read_text() == "512\n"
    assert "nr_hugepages: 512 -> 3" in hugepages("undo")
    assert "nothing was reserved" in hugepages("undo")
