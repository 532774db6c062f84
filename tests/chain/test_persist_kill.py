"""SIGKILL at random instants of a save: `latest` is loadable, and its sums are right, each time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import persist_child
from support.persisting import proved, replica_in, take

from flowcheck.replica.model_replica import Replica

ELEMENTS = 300_000
MEASURED_EVERY = 4
"""Lives: so often a save is waited for, because others may slow this machine down meanwhile."""
SAVED_LIMIT_S = 60
PAUSE = threading.Event()
SUPPORT = Path(persist_child.__file__).resolve()


class Killer:
    """Begins savers and kills them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def kill(self, pid: int) -> None:
        assert self._process.stdout is not None
        os.kill(pid, signal.SIGKILL)
        assert self._process.stdout.readline() == "dead\n"


@contextmanager
def killer(state: Path, staging: Path, settings: dict[str, Any]) -> Iterator[Killer]:
    paths = [str(SUPPORT.parents[1]), str(SUPPORT.parents[2])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(SUPPORT), str(state), str(staging), json.dumps(settings)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield Killer(process)
    finally:
        process.kill()
        process.communicate()


def until_saved(replica: Replica, latest: Path) -> float:
    """Seconds until a saver that just began has saved a step."""
    began_s, before = time.monotonic(), latest.read_text() if latest.exists() else ""
    while not latest.exists() or latest.read_text() == before:
        assert time.monotonic() - began_s < SAVED_LIMIT_S, "no saver gets on"
        take(replica)
        PAUSE.wait(0.01)
    return time.monotonic() - began_s


def kills(shm: Path, tmp_path: Path, times: int, seed: int, **more: Any) -> None:
    """After each kill all that the ledger names is whole, and never less than is to stay."""
    target = shm / "kept"
    settings = {"target": str(target), "every_steps": 1, "keep_last": 2, **more}
    replica = replica_in(shm / "state", ELEMENTS)
    take(replica)
    instants, latest = random.Random(seed), target / "latest"
    seen = []
    with killer(shm / "state", tmp_path / "staging", settings) as saving:
        pid = saving.begin()
        for number in range(times):
            if number % MEASURED_EVERY == 0:
                save_s = until_saved(replica, latest)
            until_s = time.monotonic() + instants.uniform(0, 3 * save_s)
            while time.monotonic() < until_s:
                take(replica)
                PAUSE.wait(0.01)
            saving.kill(pid)
            named = latest.read_text().strip()
            seen.append(proved(target / named))
            entries = json.loads((target / "checkpoints.json").read_bytes())["entries"]
            assert [proved(target / one["name"]) for one in entries] == [o["step"] for o in entries]
            assert named in [one["name"] for one in entries[-2:]]
            pid = saving.begin()
        saving.kill(pid)
    assert seen == sorted(seen)
    assert len(set(seen)) >= times // MEASURED_EVERY, "savers get on between kills"
    replica.close()


@pytest.mark.nightly
def test_latest_is_loadable_and_verified_after_each_of_a_few_kills(
    shm: Path, tmp_path: Path
) -> None:
    kills(shm, tmp_path, 5, 1)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("more", [{}, {"rate_limit_bytes_s": 200_000_000}], ids=["direct", "paced"])
def test_latest_is_loadable_and_verified_after_each_of_a_hundred_kills(
    shm: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    kills(shm, tmp_path, 100, 7, **more)
