"""Hosts as network namespaces on one bridge, and torch jobs on them with the lab's backend."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.stale import sweep

REPOSITORY = Path(__file__).resolve().parents[2]
MTU = 4200


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


def _written(process: subprocess.Popen[bytes]) -> None:
    """Waits until tcpdump has written all the kernel has for it.

    It leaves what it has not read yet when it is told to end: on a busy machine, the last frames.
    """
    assert process.stderr is not None
    for _ in range(200):
        process.send_signal(signal.SIGUSR1)
        line = process.stderr.readline().decode()
        captured, received, dropped = map(int, re.findall(r"(\d+) packets?", line))
        assert dropped == 0, line
        if captured == received:
            return
        time.sleep(0.1)
    raise AssertionError(line)


@dataclass(frozen=True)
class Result:
    """How one rank ended."""

    code: int
    out: str
    err: str


def entry_points(folder: Path) -> Path:
    """A distribution in `folder` with the project's own entry points, for a tree that is not
    installed; to be put on PYTHONPATH."""
    groups = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / "flowcheck_lab_entry-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flowcheck-lab-entry\nVersion: 0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in
             groups.items()]  # fmt: skip
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


class Hosts:
    """`count` namespaces with one interface eth0 each, 10.78.0.1 and on."""

    def __init__(self, count: int, entry: Path) -> None:
        self.names = [f"fcthosts{os.getpid()}-{i}" for i in range(count)]
        self.switch = f"fcthosts{os.getpid()}-sw"
        self._path = os.pathsep.join([str(entry), str(REPOSITORY)])

    def start(self, rank: int, script: str, **environment: str) -> subprocess.Popen[str]:
        """Rank `rank` of a job of all hosts runs `script` (Python source)."""
        variables = os.environ | {
            "PYTHONPATH": self._path,
            "MASTER_ADDR": "10.78.0.1",
            "MASTER_PORT": "29555",
            "RANK": str(rank),
            "WORLD_SIZE": str(len(self.names)),
            "OMP_NUM_THREADS": "1",
            "FLOWCHECK_LAB_INTERFACE": "eth0",
            **environment,
        }
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[rank], sys.executable, "-W", "error", "-c", script],
            env=variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, script: str, limit_s: int = 100, **environment: str) -> list[Result]:
        """The job on all hosts, to its end; what still runs at the limit is killed."""
        started = [self.start(rank, script, **environment) for rank in range(len(self.names))]
        results = []
        for process in started:
            try:
                out, err = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                err += "\nkilled at the limit"
            results.append(Result(process.returncode, out, err))
        return results

    @contextmanager
    def capture(self, rank: int, path: Path) -> Iterator[None]:
        """RoCE frames at the switch's port of `rank`, by tcpdump, while the block runs."""
        inside = ("ip", "netns", "exec", self.switch, "tcpdump")
        # What is still in a block of the kernel when tcpdump is told to end would be lost.
        # The kernel's buffer has slots of the snapshot length: at tcpdump's own 256 KiB it holds a
        # thousand frames, and a busy machine keeps tcpdump waiting for longer than that.
        options = ("--immediate-mode", "-U", "-s", "9216", "-B", "262144")
        with subprocess.Popen(
            [*inside, "-i", f"p{rank}", *options, "-w", str(path), "udp port 4791"],
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stderr is not None
            try:
                while b"listening" not in process.stderr.readline():
                    assert process.poll() is None
                yield
                _written(process)
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(timeout=60)


@contextmanager
def hosts(count: int, entry: Path) -> Iterator[Hosts]:
    """Needs root."""
    sweep()
    made = Hosts(count, entry)
    spaces = [made.switch, *made.names]
    try:
        for name in spaces:
            _ip("netns", "add", name)
            subprocess.run(
                ["ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"],
                check=True,
                timeout=20,
            )
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", made.switch, "link", "add", "br0", "mtu", str(MTU), "type", "bridge")
        _ip("-n", made.switch, "link", "set", "br0", "up")
        for i, name in enumerate(made.names):
            inside = ("-n", made.switch, "link")
            _ip(*inside, "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", name, "link", "set", "eth0", "mtu", str(MTU), "up")
            _ip("-n", name, "address", "add", f"10.78.0.{i + 1}/24", "dev", "eth0")
            _ip(*inside, "set", f"p{i}", "mtu", str(MTU), "master", "br0", "up")
        yield made
    finally:
        for name in spaces:
            subprocess.run(
                ["ip", "netns", "del", name], capture_output=True, timeout=20, check=False
            )


def ended_well(results: list[Result]) -> list[str]:
    """What each rank printed. Asserts that all ended with 0."""
    assert [one.code for one in results] == [0] * len(results), "\n".join(r.err for r in results)
    return [one.out.strip() for one in results]


def lines_of(path: Path) -> list[dict[str, object]]:
    """A truth file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
