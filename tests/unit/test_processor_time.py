"""A test that takes more of the processor than one of the day may fails the run, and is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import processor_time

CONFTEST = """
from support import processor_time
def pytest_addoption(parser):
    processor_time.add_options(parser)
def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: x")
    config.pluginmanager.register(processor_time.ProcessorTime(config))
"""
TESTS = """
import subprocess, sys, time
import pytest
BUSY = "import time\\nwhile time.process_time() < 0.3: pass"
def test_waits(): time.sleep(0.3)
def test_itself():
    end = time.process_time() + 0.3
    while time.process_time() < end: pass
def test_child(): subprocess.run([sys.executable, "-S", "-c", BUSY], check=True)
LIVE = []
def test_child_that_lives():
    LIVE.append(subprocess.Popen([sys.executable, "-S", "-c",
        BUSY + "\\nprint(flush=True)\\ntime.sleep(60)"], stdout=subprocess.PIPE))
    LIVE[0].stdout.readline()
def test_that_waits_for_it():
    LIVE[0].kill()
    LIVE[0].communicate()
@pytest.mark.nightly
def test_of_the_night(): test_itself()
"""
DEAR = {"test_itself", "test_child", "test_child_that_lives"}


def ran(folder: Path, *words: str) -> tuple[int, set[str], str]:
    """(exit code, tests that are refused, all it said)."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(TESTS)
    tests = str(Path(processor_time.__file__).resolve().parents[1])
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", *words],
        cwd=folder,
        env=env | {"PYTHONPATH": tests},
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in done.stdout.splitlines() if " may take" in line]
    return done.returncode, {line.split()[0].rpartition("::")[2] for line in told}, done.stdout


@pytest.mark.parametrize(
    "workers",
    [[], pytest.param(["-n", "2", "--dist", "loadfile"], marks=pytest.mark.nightly)],
    ids=["one", "two"],
)
def test_what_is_dear_is_named_and_fails_the_run(tmp_path: Path, workers: list[str]) -> None:
    code, refused, said = ran(tmp_path, "--processor-seconds", "0.2", *workers)
    assert (code, refused) == (1, DEAR), said
    assert all(f"test_it.py::{name}\n" in said for name in DEAR | {"test_of_the_night"})


@pytest.mark.nightly
def test_all_together_have_a_bound_and_without_one_none_is_refused(tmp_path: Path) -> None:
    code, refused, said = ran(tmp_path, "--processor-seconds-of-all", "0.5")
    assert code == 1 and not refused and "of the processor, of 0\n" in said, said
    for words in ["--processor-seconds-of-all", "60"], []:
        code, refused, said = ran(tmp_path, *words)
        assert code == 0 and not refused, said
