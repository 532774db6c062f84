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


def asked(root: Path, verb: str, *, prefix: str) -> subprocess.CompletedProcess[str]:
    words = [str(SCRIPTS / "node" / "install-node"), verb, "--root", str(root), "--prefix", prefix]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def install(verb: str, root: Path) -> str:
    if not (Path(sys.prefix) / "bin" / "flowcheck").exists():
        pytest.skip("flowcheck is not installed beside this Python")
    done = asked(root, verb, prefix=sys.prefix)
    assert done.returncode == 0, done.stderr
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


@pytest.mark.parametrize("prefix", ["/nope", ".venv"], ids=["not there", "no whole path"])
def test_a_unit_whose_program_systemd_would_not_find_is_not_written(
    tmp_path: Path, prefix: str
) -> None:
    refused = asked(tmp_path, "install", prefix=prefix)
    assert refused.returncode == 2 and f"no program at {prefix}/bin/flowcheck" in refused.stderr
    assert not files(tmp_path)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_what_is_installed_is_a_unit_to_systemd_and_a_job_to_flowcheck(tmp_path: Path) -> None:
    install("install", tmp_path)
    unit = tmp_path / "flowcheck@job.service"
    shutil.copy(tmp_path / UNIT, unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr
    job = job_from(tomllib.loads((tmp_path / "etc/flowcheck/examples/job.toml").read_text()))
    assert job.source[0].pci == "0000:3b:00.0"


def hugepages(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPTS / "hugepages"), *words], env={**os.environ, "SYSROOT": str(root)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Of a machine of 4 GiB with three pages."""
    made = tmp_path / "sys/kernel/mm/hugepages/hugepages-2048kB"
    for folder in (made, tmp_path / "proc", tmp_path / "run"):
        folder.mkdir(parents=True)
    (made / "nr_hugepages").write_text("3\n")
    (made / "free_hugepages").write_text("3\n")
    (tmp_path / "proc/mounts").write_text("")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 5000000 kB\nMemAvailable:  4194304 kB\n")
    return made


def test_hugepages_are_reserved_once_and_given_back(tmp_path: Path, pool: Path) -> None:
    def told(*words: str) -> str:
        done = hugepages(tmp_path, *words)
        assert done.returncode == 0 and not done.stderr
        return done.stdout

    assert "made-up root" in told()
    assert "nr_hugepages: 3 -> 512" in told("reserve", "512")
    assert "->" not in told("reserve", "100"), "there are enough"
    assert (pool / "nr_hugepages").read_text() == "512\n"
    assert "nr_hugepages: 512 -> 3" in told("undo")
    assert "nothing was reserved" in told("undo")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("reserve", "9" * 20), "reserve 99999999999999999999: N is a number of pages"),
        (("reserve", "4000"), "the memory that is free holds 2051 pages"),
        (("reserve", "08"), "N is a number of pages"),
        (("reserve",), "usage: "),
        (("free",), "usage: "),
    ],
)
def test_pages_that_cannot_be_are_refused_in_one_line(
    tmp_path: Path, pool: Path, words: tuple[str, ...], why: str
) -> None:
    done = hugepages(tmp_path, *words)
    assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1
    assert (pool / "nr_hugepages").read_text() == "3\n"
