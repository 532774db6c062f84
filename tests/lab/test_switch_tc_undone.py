"""Mirrors of real tc that are killed or fail in the middle leave nothing, or what mends it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mirrored import Switch, dying
from support.tc_switch import ASKED, bridged, held, somebodys

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]
NIGHTLY = pytest.mark.nightly


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    with bridged(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    "call", [pytest.param(n, marks=NIGHTLY) if n != 4 else n for n in range(1, 6)]
)
def test_killed_in_the_middle_the_next_apply_and_remove_mend_it(
    switch: Switch, tmp_path: Path, call: int
) -> None:
    before = held(switch)
    path = dying(tmp_path, "tc", " add ", call, "kill -9 $PPID; exit 1")
    code, _ = switch.apart("apply", *ASKED, path=path)
    assert code == -9
    if call % 2:
        assert switch.verb("apply", *ASKED)[1]["outcome"] == "changed"
        assert switch.verb("apply", *ASKED)[1]["outcome"] == "unchanged"
    assert switch.verb("remove")[0] == 0
    assert held(switch) == before


@pytest.mark.parametrize(
    "call", [pytest.param(n, marks=NIGHTLY) if n != 4 else n for n in range(1, 7)]
)
def test_killed_while_removing_the_next_remove_ends_it(
    switch: Switch, tmp_path: Path, call: int
) -> None:
    switch.run("tc", "qdisc", "add", "dev", "p0", "clsact")
    somebodys(switch, 7, "pipe", "egress")
    before = held(switch)
    assert switch.verb("apply", *ASKED)[::2] == (0, "")
    path = dying(tmp_path, "tc", " del ", call, "kill -9 $PPID; exit 1")
    assert switch.apart("remove", path=path)[0] == -9
    assert switch.verb("remove")[0] == 0
    assert held(switch) == before


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("verb", "word", "call", "device"),
    [
        ("remove", " del ", 1, "p1"),
        ("remove", " del ", 2, "p0"),
        ("remove", " show dev p0", 1, "p0"),
        ("remove", " del ", 2, "mon0"),
        ("change", " add ", 1, "p0"),
        ("change", " del ", 1, "p0"),
        ("apply", " add ", 3, "p0"),
        ("apply", " add ", 3, "mon0"),
        ("apply", " show dev ", 2, "other"),
    ],
)
def test_a_device_that_goes_meanwhile_takes_its_own_filters_and_no_others(
    switch: Switch, tmp_path: Path, verb: str, word: str, call: int, device: str
) -> None:
    """What was asked of it is not there at the end, and that is said; the rest is as before."""
    switch.run("tc", "qdisc", "add", "dev", "other", "clsact")
    asked = ASKED
    if verb != "apply":
        assert switch.verb("apply", *ASKED)[::2] == (0, "")
    if verb == "change":
        asked = ("--source", "p0", "--source", "p1:both", "--monitor", "mon0")
    path = dying(tmp_path, "tc", word, call, f"ip link del {device} 2> /dev/null")
    words = () if verb == "remove" else asked
    code, told = switch.apart("remove" if verb == "remove" else "apply", *words, path=path)
    if verb == "remove" or device == "other":
        assert code == 0, told
    else:
        assert (code, "all of it was undone" in told) == (1, True), told
    left = verb == "change" or device == "other"
    assert switch.verb("remove")[1]["outcome"] == ("changed" if left else "unchanged")
    assert b"flowcheck".hex() not in held(switch)
    assert held(switch).count('"clsact"') == (device != "other")


@pytest.mark.parametrize("call", [3, *(pytest.param(n, marks=NIGHTLY) for n in (1, 5))])
def test_what_fails_in_the_middle_is_undone(switch: Switch, tmp_path: Path, call: int) -> None:
    before = held(switch)
    path = dying(tmp_path, "tc", " add ", call, "echo Error: no room >&2; exit 2")
    code, told = switch.apart("apply", *ASKED, path=path)
    assert code == 1
    assert "no room" in told
    assert held(switch) == before


def test_a_form_that_fails_is_undone_in_the_form_that_was(switch: Switch, tmp_path: Path) -> None:
    """As where a kernel has no matchall: its filter goes, the other does not come."""
    assert switch.verb("apply", *ASKED, "--form", "u32")[0] == 0
    path = dying(tmp_path, "tc", " matchall ", 1, "echo Error: no classifier >&2; exit 2")
    code, told = switch.apart("apply", *ASKED, "--form", "matchall", path=path)
    assert (code, "all of it was undone" in told) == (1, True), told
    assert switch.verb("apply", *ASKED, "--form", "u32")[1]["outcome"] == "unchanged"


@pytest.mark.nightly
def test_what_cannot_be_undone_is_said_with_the_commands(switch: Switch, tmp_path: Path) -> None:
    before = held(switch)
    first = dying(tmp_path, "tc", " add ", 4, "echo Error: no room >&2; exit 2")
    text = (first / "tc").read_text().replace("esac", '*" del "*) exit 2;;\nesac')
    (first / "tc").write_text(text)
    code, told = switch.apart("apply", *ASKED, path=first)
    assert code == 2
    commands = [
        line for line in told.splitlines() if line.startswith("    tc ") and " del " in line
    ]
    assert commands
    for command in commands:
        subprocess.run(
            ["ip", "netns", "exec", switch.cluster.switch_namespace, *command.split()], check=False
        )
    assert held(switch) == before
