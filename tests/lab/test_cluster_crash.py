"""`lab up` killed at any instant, then `lab down`: nothing is left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.leftovers import leftovers_of, settings
from support.switches import OVS, SWITCHES

from flowcheck.lab import cluster as lab
from flowcheck.lab.cluster import namespace_processes, network_namespaces, socket_buffer_sysctls
from flowcheck.lab.cluster.socket_buffer_sysctls import RAISED_SYSCTLS_FILE, SYSCTL_BYTES_LEAST

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]
NAME = f"c{os.getpid()}"


def leftovers(switch: str = "bridge") -> dict[str, object]:
    found = leftovers_of(NAME)
    if switch == "ovs":
        users = (
            json.loads(RAISED_SYSCTLS_FILE.read_text())["users"]
            if RAISED_SYSCTLS_FILE.exists()
            else []
        )
        raised = settings() == [f"{value}\n" for value in SYSCTL_BYTES_LEAST.values()]
        found |= {"named": NAME in users, "raised for nobody": raised and not users}
    return found


DYING = """
import os, signal, sys
from flowcheck.lab import cluster
limit, calls = int(sys.argv[1]), 0
def count(frame, event, argument):
    global calls
    calls += 1
    if calls == limit:
        os.kill(os.getpid(), signal.SIGKILL)
spec = cluster.Cluster(name=sys.argv[2], switch=sys.argv[3], erspan=sys.argv[3] == "ovs")
sys.setprofile(count)
cluster.up(spec)
sys.setprofile(None)
print(calls)
"""
"""Dies at the limit-th call or return of any function, C's included."""


def up_until(limit: int, switch: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", DYING, str(limit), NAME, switch],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.timeout(170)
@pytest.mark.parametrize("kills", [8, pytest.param(40, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("switch", SWITCHES)
def test_killed_anywhere(switch: str, kills: int) -> None:
    before = leftovers(switch)
    whole = up_until(0, switch)
    assert whole.returncode == 0, whole.stderr
    assert leftovers(switch) != before
    assert lab.down(NAME)
    assert leftovers(switch) == before
    calls = int(whole.stdout)
    seed = random.randrange(1 << 32)
    chosen = random.Random(seed)
    dirty = 0
    for _ in range(kills):
        limit = chosen.randrange(1, calls)
        died = up_until(limit, switch)
        assert died.returncode == -signal.SIGKILL, (seed, limit, died.stderr)
        dirty += leftovers(switch) != before
        lab.down(NAME)
        assert leftovers(switch) == before, (seed, limit)
        assert not lab.down(NAME)
    assert dirty > kills // 3


@pytest.mark.parametrize("switch", SWITCHES)
def test_killed_by_the_clock(switch: str) -> None:
    """The command as an operator starts it, killed from outside, and `down` at once."""
    before = leftovers(switch)
    command = [sys.executable, "-m", "flowcheck", "lab"]
    for tenths in range(1, 8):
        process = subprocess.Popen(
            [*command, "up", "--name", NAME, "--switch", switch], stdout=subprocess.DEVNULL
        )
        try:
            process.wait(0.08 * tenths)
        except subprocess.TimeoutExpired:
            process.kill()
        # Not waited for: `down` has to cope with an `up` that is still dying.
        lab.down(NAME)
        process.wait(60)
        assert leftovers(switch) == before


@pytest.mark.parametrize("switch", SWITCHES)
def test_down_cut_short(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `down` that dies after any namespace is finished by the next one."""
    before = leftovers(switch)
    cluster = lab.up(lab.Cluster(name=NAME, switch=switch))  # type: ignore[arg-type]
    real = network_namespaces.remove
    for count in range(len(cluster.namespaces)):

        def once(namespace: str, left: list[int] = [count and 1]) -> None:  # noqa: B006
            if not left[0]:
                raise OSError("killed here")
            left[0] -= 1
            real(namespace)

        monkeypatch.setattr(network_namespaces, "remove", once)
        with pytest.raises(OSError, match="killed here"):
            lab.down(NAME)
    monkeypatch.undo()
    assert lab.down(NAME)
    assert leftovers(switch) == before


@pytest.mark.parametrize("switch", SWITCHES)
def test_down_without_a_readable_state(switch: str) -> None:
    before = leftovers(switch)
    lab.up(lab.Cluster(name=NAME, switch=switch))  # type: ignore[arg-type]
    Path("/run/flowcheck/lab", f"{NAME}.json").write_text('{"of": "another release"}')
    assert lab.down(NAME)
    assert leftovers(switch) == before


BEGUN = ' until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done; '
"""A child of a shell is the shell until it runs its program."""


def test_down_ends_what_runs_there() -> None:
    """Also what ignores SIGTERM, and what its children started."""
    before = leftovers()
    cluster = lab.up(lab.Cluster(name=NAME))
    stubborn = lab.run_in(
        cluster.host_namespace(1),
        ["sh", "-c", "trap '' TERM; sleep 1000 &" + BEGUN + "echo ready; wait; wait; sleep 1000"],
        stdout=subprocess.PIPE,
    )
    assert stubborn.stdout is not None
    assert stubborn.stdout.readline() == b"ready\n"
    removed = lab.down(NAME)
    assert stubborn.wait(60) == -signal.SIGKILL
    stubborn.stdout.close()
    assert {"sh", "sleep"} == {process.what for process in removed.processes}
    assert leftovers() == before


def test_another_life_of_a_pid_is_spared() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        found = namespace_processes.find_process(process.pid)
        assert found is not None
        namespace_processes.end_processes(
            [namespace_processes.ProcessIdentity(found.pid, found.start - 1, "sleep")]
        )
        assert process.poll() is None
        namespace_processes.end_processes([found])
        assert process.wait(60) == -signal.SIGTERM


@pytest.fixture
def low_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kernel's own, whatever others have raised and left so; theirs are back afterwards."""
    monkeypatch.setattr(socket_buffer_sysctls, "RAISED_SYSCTLS_FILE", tmp_path / "sysctls")
    theirs = settings()
    low = dict.fromkeys(SYSCTL_BYTES_LEAST, 212992)
    put(low)
    yield settings()
    for name in (NAME, f"{NAME}b"):
        lab.down(name)
    put(dict(zip(SYSCTL_BYTES_LEAST, map(int, theirs), strict=True)))


def put(values: dict[str, int]) -> None:
    for key, value in values.items():
        Path("/proc/sys", key.replace(".", "/")).write_text(str(value))


@pytest.mark.parametrize("switch", [OVS])
def test_settings_are_put_back_by_the_last(switch: str, low_settings: list[str]) -> None:
    for name in (NAME, f"{NAME}b"):
        lab.up(lab.Cluster(name=name, switch=switch))  # type: ignore[arg-type]
    assert [int(one) for one in settings()] == list(SYSCTL_BYTES_LEAST.values())
    lab.down(NAME)
    assert [int(one) for one in settings()] == list(SYSCTL_BYTES_LEAST.values())
    lab.down(f"{NAME}b")
    assert settings() == low_settings
