"""The supervisor's end of the process that stages are forked from, beside one that fails in every
way; command lines as the kernel shows them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowcheck.stages.supervisor import stage_starter_client
from flowcheck.stages.supervisor.stage_starter_client import LOADED, StageStarter

TITLE = """
import ctypes, os, sys
from flowcheck.stages.supervisor.process_title import free_environment, set_command_line
os.environ["LATER"] = "set behind the start"
before = dict(os.environ)
free_environment()
set_command_line(sys.stdin.read().split())
c = ctypes.CDLL(None)
c.getenv.restype = ctypes.c_char_p
assert all(c.getenv(name.encode()).decode() == value for name, value in before.items())
sys.stdout.write(open("/proc/self/cmdline").read())
"""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StageStarter, socket.socket]]:
    """The client, and the other end of its socket, beside a process that does nothing."""
    monkeypatch.setattr(stage_starter_client, "ANSWER_LIMIT_S", 0.05)
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(["sleep", "600"])
    starter = StageStarter(process.pid, mine)
    with its:
        yield starter, its
    starter.end()
    assert not Path(f"/proc/{process.pid}").exists()
    process.wait()  # somebody did


def test_nobody_waits_for_one_that_is_gone(ends: tuple[StageStarter, socket.socket]) -> None:
    starter, its = ends
    assert starter.is_loading() and starter.start(["stage", "update"], 2) is None
    its.close()
    assert not starter.is_loading() and starter.start(["stage", "update"], 2) is None


@pytest.mark.parametrize("answer", [b"0", b"none", None, b""])
def test_without_an_answer_the_stage_is_executed_and_no_other_is_asked_for(
    ends: tuple[StageStarter, socket.socket], answer: bytes | None
) -> None:
    """None: it hangs; nothing: it was killed."""
    starter, its = ends
    its.send(LOADED)
    assert not starter.is_loading()
    if answer == b"":
        its.shutdown(socket.SHUT_WR)
    elif answer is not None:
        its.send(answer)
    assert starter.start(["stage", "update"], 2) is None
    assert starter.start(["stage", "update"], 2) is None and not starter.is_loading()


@pytest.mark.parametrize("words", ["short", f"python -m a {'x' * 900}", "y" * 100_000])
def test_a_process_shows_the_words_it_was_given(words: str) -> None:
    """As far as there is room; no variable of the environment is lost to them."""
    shown = subprocess.run(
        [sys.executable, "-c", TITLE],
        input=words,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"ROOM": "z" * 1000},
    ).stdout.rstrip("\0")
    assert words.startswith(shown.replace("\0", " "))
    assert len(shown) >= min(len(words), 1000)


GIVEN_UP = """
import os, sys
from pathlib import Path
from flowcheck.stages.privilege.adopted_fork import fork_adopted
from flowcheck.stages.privilege.privilege_syscalls import adopt_orphans
adopt_orphans()
seen = []
pid = fork_adopted(2, (), lambda pid: bool(seen.append(pid)) or sys.argv[1] == "wanted")
if pid == 0:
    Path(sys.argv[2]).write_text("it began")
    os._exit(5)
assert pid == (seen[0] if sys.argv[1] == "wanted" else None)
print(os.waitstatus_to_exitcode(os.waitpid(seen[0], 0)[1]))
"""


@pytest.mark.parametrize(("said", "code"), [("wanted", 5), ("given up", 127)])
def test_a_stage_that_was_given_up_meanwhile_never_begins(
    tmp_path: Path, said: str, code: int
) -> None:
    """The supervisor has executed it by then: there must not be two."""
    file = tmp_path / "began"
    words = [sys.executable, "-c", GIVEN_UP, said, str(file)]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert int(shown) == code and file.exists() == (said == "wanted")
