"""The virtual machines' test killed at any moment: no machine, namespace, link or file is left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.eal import wait_until, why_not
from support.leftovers import leftovers_of
from support.rxe.bench import FOLDERS
from support.rxe.image import missing

WHY_NOT = why_not() or missing()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "nothing is missing"),
]
TESTS = Path(__file__).resolve().parents[1]
NAME = f"rxk{os.getpid()}"
DYING = """
import sys
from support.rxe.bench import bench
with bench(sys.argv[1], "bridge"):
    print("up", flush=True)
    sys.stdin.read()
"""
GONE_LIMIT_S = 60.0


def leftovers() -> dict[str, object]:
    """Files and processes too: every machine's command names the folder."""
    mark = f"{FOLDERS}{NAME}".encode()
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands += [path.parent.name] if mark in path.read_bytes() else []
        except OSError:
            continue
    folders = sorted(Path("/dev/shm").glob(f"{FOLDERS}{NAME}*"))
    found = leftovers_of(NAME)
    return {key: found[key] for key in ("namespaces", "files in /run", "mounts")} | {
        "folders": folders,
        "commands": commands,
    }


@pytest.mark.parametrize("after_s", [0.5, 1.5, 3.0, None], ids=str)
def test_nothing_outlives_a_kill(after_s: float | None) -> None:
    """`after_s` None: once both machines are up."""
    before = leftovers()
    assert not any(before.values())
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", DYING, NAME],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"},
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            if after_s is None:
                assert process.stdout.readline() == b"up\n", (said.seek(0), said.read())[1]
                assert all(leftovers().values()), "the test looks for the wrong things"
            else:
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(after_s)
        finally:
            process.kill()
            process.wait(60)
            process.stdin.close()
            process.stdout.close()
    assert wait_until(lambda: leftovers() == before, GONE_LIMIT_S), leftovers()
