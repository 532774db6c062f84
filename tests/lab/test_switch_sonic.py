"""SONiC over a real ssh server, whose commands keep a real redis the way a switch does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from support.sonic_switch import MISSING, Switch, running

from flowcheck.findings.catalog.mirror_session_rules import ONE_DIRECTION_ONLY
from flowcheck.findings.catalog.refused_sonic_sessions import (
    ASIC_CANNOT_MIRROR,
    SONIC_HOST_NEEDED,
    SONIC_MONITOR_IS_MEMBER,
    SONIC_MONITOR_IS_ROUTED,
    SONIC_MONITOR_TAKEN,
    SONIC_MONITOR_WATCHED,
    SONIC_NAME_TAKEN,
    SONIC_NO_SUCH_PORT,
    SONIC_NOT_REMOVED,
    SONIC_SOURCE_IS_MONITOR,
    SONIC_SOURCE_WATCHED,
)
from flowcheck.ops.switch.apply import sonic_mirror
from flowcheck.ops.switch.switch_platforms import platform_named

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for sshd"),
]
ASKED = ("--source", "Ethernet4", "--source", "Ethernet0", "--monitor", "Ethernet124")


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    with running(tmp_path) as made:
        yield made


def test_twice_is_once_and_no_trace_is_left(switch: Switch) -> None:
    before = switch.held()
    code, told, err = switch.verb("apply", *ASKED)
    assert (code, told.get("outcome")) == (0, "changed"), err
    assert "Ethernet40" in str(told["notes"]), "older releases compare names by their beginning"
    made = switch.held()
    assert made["4 MIRROR_SESSION|flowcheck"] == {
        "type": "SPAN",
        "dst_port": "Ethernet124",
        "src_port": "Ethernet0,Ethernet4",
        "direction": "RX",
    }
    assert switch.verb("apply", *ASKED)[1]["outcome"] == "unchanged"
    assert switch.held() == made
    assert switch.verb("remove")[1]["outcome"] == "changed"
    assert switch.held() == before
    assert list((switch.folder / "journal").glob("*.json")) == []
    assert switch.heard("save") == []


def test_what_is_asked_anew_takes_the_place_of_what_was(switch: Switch) -> None:
    before = switch.held()
    assert switch.verb("apply", *ASKED, "--dry-run")[1]["outcome"] == "would change"
    assert switch.held() == before
    assert switch.verb("apply", *ASKED)[0] == 0
    assert switch.verb("apply", "--source", "Ethernet8", "--monitor", "Ethernet124")[0] == 0
    assert "Ethernet8" in str(switch.held()["4 MIRROR_SESSION|flowcheck"])
    assert switch.verb("remove")[1]["outcome"] == "changed"
    assert switch.verb("remove")[1]["outcome"] == "unchanged"
    assert switch.held() == before


@pytest.mark.parametrize("before_it", [True, False])
def test_killed_at_the_command_the_next_remove_mends_it(switch: Switch, before_it: bool) -> None:
    """By what was noted before the command was sent."""
    before = switch.held()
    real = shutil.which("ssh")
    script = switch.folder / "killing/ssh"
    script.parent.mkdir()
    rest = "" if before_it else f'{real} "$@"; '
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *"span add"*) {rest}kill -9 $PPID; exit 1;; esac\n'
        f'exec {real} "$@"\n'
    )
    script.chmod(0o755)
    path = f"{script.parent}:{os.environ['PATH']}"
    command = [sys.executable, "-m", "flowcheck", *switch.command("apply", *ASKED)]
    done = subprocess.run(command, env=os.environ | {"PATH": path}, timeout=100, check=False)
    assert done.returncode == -9
    assert (switch.held() == before) == before_it
    assert switch.verb("remove")[0] == 0
    assert switch.held() == before


def test_what_would_harm_is_refused_before_the_switch_is_asked(switch: Switch) -> None:
    def refused(sentence: str, *words: str) -> None:
        code, _, err = switch.verb("apply", *words)
        assert code == 2, err
        assert sentence in err

    monitor = ("--monitor", "Ethernet124")
    switch.row(4, "VLAN_MEMBER|Vlan7|Ethernet100", {"tagging_mode": "untagged"})
    switch.row(4, "INTERFACE|Ethernet104|10.0.0.1/31", {"NULL": "NULL"})
    before = switch.held()
    name = "somebodys"
    refused(str(SONIC_SOURCE_WATCHED(name)), "--source", "Ethernet40", *monitor)
    refused(str(SONIC_MONITOR_TAKEN(name)), "--source", "Ethernet0", "--monitor", "Ethernet64")
    refused(str(SONIC_SOURCE_IS_MONITOR(name)), "--source", "Ethernet64", *monitor)
    refused(str(SONIC_MONITOR_WATCHED(name)), "--source", "Ethernet0", "--monitor", "Ethernet40")
    refused(str(ASIC_CANNOT_MIRROR("tx")), "--source", "Ethernet0:tx", *monitor)
    refused(
        str(SONIC_MONITOR_IS_MEMBER("Vlan7")), "--source", "Ethernet0", "--monitor", "Ethernet100"
    )
    refused(str(SONIC_MONITOR_IS_ROUTED()), "--source", "Ethernet0", "--monitor", "Ethernet104")
    two = ("--source", "Ethernet0", "--source", "Ethernet4")
    refused("at 100 + 100 = 200 Gb/s", *two, "--monitor", "Ethernet8")
    refused(str(SONIC_NO_SUCH_PORT()), "--source", "Ethernet3", *monitor)
    both = ("--source", "Ethernet0", "--source", "Ethernet4:tx")
    title = platform_named("sonic").title
    refused(str(ONE_DIRECTION_ONLY(platform=title, directions=["rx", "tx"])), *both, *monitor)
    refused(str(SONIC_NAME_TAKEN()), *ASKED, "--session", "somebodys")
    code, _, err = switch.verb("remove", "--session", "somebodys")
    assert (code, str(SONIC_NOT_REMOVED("switch")) in err) == (2, True)
    assert switch.held() == before
    assert switch.heard("mirror_session") == []


def test_what_fails_is_undone_by_what_the_switch_holds_then(switch: Switch) -> None:
    before = switch.held()
    for marker, why in (
        ("refuses", "no room in the chip"),
        ("inactive", "its status is inactive"),
        ("hangs up", "ssh ended with 255"),
    ):
        (switch.folder / marker).write_text(why)
        code, told, err = switch.verb("apply", *ASKED)
        assert (code, told.get("outcome")) == (1, "undone"), err
        assert why in str(told["why"])
        assert switch.held() == before
        (switch.folder / marker).unlink(missing_ok=True)


def test_a_session_somebody_changed_is_no_longer_ours(switch: Switch) -> None:
    assert switch.verb("apply", *ASKED)[0] == 0
    switch.redis(4, "HSET", "MIRROR_SESSION|flowcheck", "src_port", "Ethernet8")
    changed = switch.held()
    assert switch.verb("remove")[0] == 2
    assert switch.verb("apply", *ASKED)[0] == 2
    assert switch.held() == changed


def test_saved_only_where_that_is_asked_and_strangers_are_not_trusted(switch: Switch) -> None:
    assert switch.verb("apply", *ASKED, "--save")[0] == 0
    assert "MIRROR_SESSION|flowcheck" in (switch.folder / "saved").read_text()
    (switch.folder / "known").write_text("")
    code, _, err = switch.verb("remove")
    assert (code, "Host key verification failed" in err) == (2, True)
    assert str(SONIC_HOST_NEEDED()) in switch.verb("remove", "--host", "-oProxyCommand=x")[2]


def test_a_tunnel_is_a_session_too(switch: Switch) -> None:
    before = switch.held()
    tunnel = ("--erspan", "src=10.0.0.1,dst=10.0.0.2")
    assert switch.verb("apply", "--source", "Ethernet0", *tunnel)[1]["outcome"] == "changed"
    assert switch.verb("apply", "--source", "Ethernet0", *tunnel)[1]["outcome"] == "unchanged"
    assert switch.verb("remove")[0] == 0
    assert switch.held() == before


def test_what_a_switch_does_after_it_was_given_up_is_still_ours(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = switch.held()
    (switch.folder / "hangs").touch()
    monkeypatch.setattr(sonic_mirror, "SSH_LIMIT_S", 5)
    code, told, err = switch.verb("apply", *ASKED)
    assert (code, told.get("outcome")) == (1, "undone"), err
    assert "did not end within 5 s" in str(told["why"]) and "may still run" in str(told["why"])
    (switch.folder / "hangs").unlink()
    for _ in range(600):
        if switch.held() != before:
            break
        Event().wait(0.1)
    assert "4 MIRROR_SESSION|flowcheck" in switch.held()
    assert switch.verb("remove")[1].get("outcome") == "changed"
    assert switch.held() == before
    assert list((switch.folder / "journal").glob("*.json")) == []
