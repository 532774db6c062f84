"""What a service manager is told, read from a socket of the kind systemd listens on."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from flowcheck.stages.supervisor import sd_notify
from flowcheck.stages.supervisor.sd_notify import SdNotifier


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(60)

    def said(self) -> list[str]:
        return self.socket.recv(4096).decode().splitlines()

    def silent(self) -> bool:
        if not select.select([self.socket], [], [], 0)[0]:
            return True
        self.said()
        return False


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.socket.close()


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(tmp_path / "notify"), **more}


def test_ready_is_said_once_and_only_when_every_stage_is_up(
    tmp_path: Path, manager: Manager
) -> None:
    told = SdNotifier(environment(tmp_path))
    told.poll(up=False)
    assert manager.silent()
    told.poll(up=True)
    told.poll(up=False)
    told.poll(up=True)
    assert manager.said()[0] == "READY=1"
    assert manager.silent()


def test_the_watchdog_hears_at_least_twice_within_its_patience(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(sd_notify.time, "monotonic", lambda: now[0])
    told = SdNotifier(environment(tmp_path, WATCHDOG_USEC="60000000"))
    heard_s = []
    for _ in range(120):
        told.poll(up=False)
        if not manager.silent():
            heard_s.append(now[0])
        now[0] += 1.0
    assert max(b - a for a, b in pairwise(heard_s)) <= 30.0
    assert len(heard_s) < 20, "not in every turn"


def test_another_process_s_watchdog_is_not_ours_to_calm(tmp_path: Path, manager: Manager) -> None:
    for pid, silent in ((os.getpid() + 1, True), (os.getpid(), False)):
        more = {"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(pid)}
        SdNotifier(environment(tmp_path, **more)).poll(up=False)
        assert manager.silent() is silent


def test_an_abstract_address_is_understood() -> None:
    name = f"flowcheck-notify-{os.getpid()}"
    manager = Manager(f"\0{name}")
    SdNotifier({"NOTIFY_SOCKET": f"@{name}"}).stopping()
    assert manager.said()[0] == "STOPPING=1"
    manager.socket.close()


@pytest.mark.parametrize("address", ["", "/nowhere/notify"])
def test_without_a_listener_nothing_happens(address: str) -> None:
    told = SdNotifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "nonsense"})
    told.poll(up=True)
    told.stopping()
    before = set(threading.enumerate())  # of other tests, which may end meanwhile
    with told.busy("writing"):
        begun = set(threading.enumerate()) - before
        assert len(begun) == bool(address), "nobody is told: no thread"
    assert not any(thread.is_alive() for thread in begun)


def write(folder: Path) -> None:
    with (folder / "checkpoint").open("ab") as file:
        file.write(bytes(1 << 20))


def test_more_time_is_asked_for_as_long_as_bytes_move(tmp_path: Path, manager: Manager) -> None:
    told = SdNotifier(environment(tmp_path), look_s=0.01, moved=(1 << 20, 1e9))
    with told.busy("writing"):
        first = manager.said()
        for _ in range(3):
            write(tmp_path)
            assert manager.said() == first[1:]
    assert first[0] == "STATUS=writing"
    assert first[1].startswith("EXTEND_TIMEOUT_USEC=") and first[2] == "WATCHDOG=1"


def still() -> tuple[int, float]:
    return 0, 0.0


def test_a_writer_that_stands_still_gets_no_more_time(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    real: Callable[[], tuple[int, float]] = still
    monkeypatch.setattr(sd_notify, "_done", lambda _: looked.append(1) or real())
    told = SdNotifier(environment(tmp_path), look_s=0.001)
    with told.busy("writing"):
        manager.said()
        while len(looked) < 20:
            os.sched_yield()
    assert manager.silent()
