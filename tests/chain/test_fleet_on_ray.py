"""A fleet on a Ray cluster of two raylets on this machine: started, adopted when all of Ray was
killed and began anew, kept running, stopped. Judged by the process table."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.chain import ExecutedCommand, wait_until
from support.fleets import STEPS, SmallFleet, small_fleet

from flowcheck.findings.catalog import fleet_running as told

START_S = 120.0
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_raylet_start_wait_time_s": "110",  # a busy machine
    "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef",
}


class Cluster:
    """Raylets, each with the resource of a node, and a folder of its own for Ray's sockets: they
    have names of at most 107 bytes."""

    def __init__(self, nodes: str) -> None:
        # Ray's workers take ports from 10002 to 19999.
        self.folder = Path(tempfile.mkdtemp(prefix="fr-", dir="/tmp"))
        self.address = f"127.0.0.1:{random.randrange(20_001, 20_900)}"
        port = self.address.partition(":")[2]
        program = ["--num-cpus", "0", "--block"]
        self._raylets: dict[str, subprocess.Popen[bytes]] = {}
        own = [*program, "--object-store-memory", "80000000", "--disable-usage-stats"]
        for at, node in enumerate(nodes):
            begin = ["--address", self.address]
            if at == 0:
                begin = ["--head", "--port", port, "--temp-dir", str(self.folder)]
                begin += ["--include-dashboard", "false"]
            resources = json.dumps({f"flowcheck_node_{node}": 1})
            words = ["start", *begin, *own, "--resources", resources]
            script = "from ray.scripts.scripts import main; main()"
            with self._log(node).open("wb") as log:
                self._raylets[node] = subprocess.Popen(
                    [sys.executable, "-c", script, *words],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            if at == 0:
                try:
                    wait_until(self._is_there, START_S, "Ray's head")
                except BaseException:
                    self.dies()
                    raise

    def _is_there(self) -> bool:
        return b"Ray runtime started" in self._log("a").read_bytes()

    def _log(self, node: str) -> Path:
        """What its `ray start` prints, beside the folder, which Ray wants for itself."""
        return self.folder.with_name(f"{self.folder.name}-{node}.log")

    def head(self) -> list[int]:
        """Ray's control store (gcs_server), which names the folder of its sockets."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if b"gcs_server" in words.split(b"\0")[0] and os.fsencode(self.folder) in words:
                    found.append(int(entry.name))
        return found

    def dies(self) -> None:
        """All of Ray's processes at once."""
        for one in self._raylets.values():
            one.kill()
            one.wait(30)
        for entry in Path("/proc").glob("[0-9]*"):  # what the two have started names the folder
            with suppress(OSError):
                if os.fsencode(self.folder) in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        for node in self._raylets:
            self._log(node).unlink(missing_ok=True)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallFleet]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with small_fleet(tmp_path) as made:
        yield made


def up(fleet: SmallFleet, cluster: Cluster) -> Any:
    """`fleet up`, until Ray has both nodes."""
    words = ["fleet", "up", fleet.file, "--address", cluster.address, "--wait", "90", "--json"]
    for _ in range(10):
        with ExecutedCommand(*words) as command:
            code, out, err = command.result(START_S + 60)
        made = json.loads(out) if out else {}
        absent = [one["code"] for one in made.get("not_started", {}).values()]
        if absent and set(absent) == {told.NODE_NOT_THERE.code}:
            continue  # its raylet is still being started
        assert code == 0, out + err
        return made
    raise AssertionError("a raylet did not come")


def pids(fleet: SmallFleet) -> dict[str, int]:
    return {name: fleet.run(name).stage_pids()["supervisor"] for name in ("ring0", "ring0.b")}


def is_kept(fleet: SmallFleet, chain: str) -> bool:
    """Whether an actor keeps it, as its machine says."""
    found = fleet.chain(chain)
    return found is not None and found.kept


NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="no Ray: pip install 'flowcheck[fleet]'"
)


@NEEDS_RAY
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_head_that_stands_still_ends_up_within_its_limit(fleet: SmallFleet) -> None:
    """Not dead: it takes connections, and answers nothing."""
    cluster = Cluster("a")
    limit_s = 20
    words = ["fleet", "up", fleet.file, "--address", cluster.address, "--wait", str(limit_s)]
    try:
        [head] = cluster.head()
        os.kill(head, signal.SIGSTOP)
        began_s = time.monotonic()
        with ExecutedCommand(*words, "--json") as command:
            code, out, err = command.result(START_S)
        assert code == 2 and told.RAY_SILENT.code in err, out + err
        assert time.monotonic() - began_s < limit_s + 30, "the process's own start, and its end"
        os.kill(head, signal.SIGCONT)
    finally:
        cluster.dies()


@NEEDS_RAY
@pytest.mark.nightly  # two clusters: 40 s of processor time
@pytest.mark.timeout(900)
def test_chains_outlive_ray_and_are_adopted_by_the_next_one(fleet: SmallFleet) -> None:
    first = Cluster("ab")
    try:
        up(fleet, first)
        fleet.reaches("ring0")
        fleet.reaches("ring0.b")
        own = pids(fleet)
        code, _ = fleet.status()
        assert code == 0 and all(is_kept(fleet, name) for name in own)
        for pid in own.values():
            assert os.getpriority(os.PRIO_PROCESS, pid) == 0
            assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "0"
            assert b"RAY_" not in Path(f"/proc/{pid}/environ").read_bytes()
    finally:
        first.dies()
    wait_until(lambda: not is_kept(fleet, "ring0"), START_S, "the end of the actors")
    assert pids(fleet) == own
    fleet.restored_is_torchs("--step", str(STEPS))

    second = Cluster("ab")
    try:
        up(fleet, second)
        assert pids(fleet) == own and fleet.node("a").record("ring0").starts == 1
        assert fleet.status()[1]["nodes"]["a"]["generation"] == 1, "nothing changed"
        for pid in fleet.run("ring0").stage_pids().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: fleet.run("ring0").stage_pids().get("supervisor", own["ring0"]) != own["ring0"],
            START_S,
            "another start",
        )
        assert fleet.node("a").record("ring0").starts == 2
        with ExecutedCommand("fleet", "down", fleet.file, "--json") as down:
            assert down.json() == {"generation": 2, "running": [], "not_reached": []}
        assert not any(fleet.run(name).stage_pids() for name in own)
    finally:
        second.dies()
