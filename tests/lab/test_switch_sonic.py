"""SONiC over a real ssh server, whose commands keep a real redis the way a switch does."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from support.free import free_port
from support.sonic_commands import EACH

from tests.unit.test_cli import flowcheck

PROGRAMS = ("sshd", "ssh", "ssh-keygen", "redis-server", "redis-cli")
WHERE = os.environ["PATH"] + ":/usr/sbin"
MISSING = [program for program in PROGRAMS if shutil.which(program, path=WHERE) is None]
pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for sshd"),
]
ASKED = ("--source", "Ethernet4", "--source", "Ethernet0", "--monitor", "Ethernet124")
COMMANDS = Path(__file__).parents[1] / "support/sonic_commands.py"
SOMEBODYS = {"type": "SPAN", "dst_port": "Ethernet64", "src_port": "Ethernet40", "direction": "RX"}


class Switch:
    """Its folder, and the verbs against it."""

    def __init__(self, folder: Path, config: Path) -> None:
        self.folder, self._config = folder, config

    def verb(self, verb: str, *words: str) -> tuple[int, dict[str, object], str]:
        """Exit code, the answer of --json, standard error."""
        code, out, err = flowcheck(*self.command(verb, *words))
        return code, json.loads(out) if out.startswith("{") else {}, err

    def command(self, verb: str, *words: str) -> list[str]:
        where = ["--os", "sonic", "--host", "switch", "--ssh-config", str(self._config)]
        return ["switch", verb, *where, "--journal", str(self.folder / "journal"), "--json", *words]

    def redis(self, base: int, *words: str) -> object:
        """Of somebody else's."""
        command = ["redis-cli", "-s", str(self.folder / "redis.sock"), "-n", str(base), "--json"]
        done = subprocess.run([*command, *words], capture_output=True, check=True)
        return json.loads(done.stdout)

    def held(self) -> dict[str, object]:
        """All of CONFIG_DB, and of STATE_DB."""
        found: dict[str, object] = {}
        for base in (4, 6):
            rows = self.redis(base, "EVAL", EACH, "0", "*")
            assert isinstance(rows, list)
            for key, flat in sorted(rows):
                found[f"{base} {key}"] = dict(zip(flat[::2], flat[1::2], strict=True))
        return found

    def row(self, base: int, key: str, row: dict[str, str]) -> None:
        """One more, of somebody's."""
        self.redis(base, "HSET", key, *(word for pair in row.items() for word in pair))

    def heard(self, what: str) -> list[str]:
        """Commands the switch was given."""
        return [line for line in (self.folder / "heard").read_text().splitlines() if what in line]


def waited(path: Path, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        if path.exists():
            return
        assert process.poll() is None
        Event().wait(0.05)
    raise AssertionError(f"{path} did not come")


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    """With somebody's session beside, a banner, and a shell that talks before it obeys."""
    folder = tmp_path
    port = free_port()
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    public = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known").write_text(f"[127.0.0.1]:{port} {public}\n")
    (folder / "banner").write_text("Only for those who may.\n")
    (folder / "bin").mkdir()
    sudo = '#!/bin/sh\n[ "$1" = -n ] || exit 1\nshift\nexec "$@"\n'
    commands = f"#!{sys.executable} -IS\n{COMMANDS.read_text()}"
    for name, text in (("sudo", sudo), ("config", commands), ("sonic-db-dump", commands)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    shell = folder / "shell"
    shell.write_text(
        f"#!/bin/sh\nexport SONIC_FOLDER={folder} SONIC_SSHD=$PPID PATH={folder}/bin:$PATH\n"
        'echo "You have mail."\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    shell.chmod(0o755)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\n"
        f"PasswordAuthentication no\nPermitRootLogin yes\nBanner {folder}/banner\n"
        f"ForceCommand {shell}\n"
    )
    (folder / "ssh_config").write_text(
        f"Host switch\n  HostName 127.0.0.1\n  Port {port}\n  User root\n"
        f"  IdentityFile {folder}/user\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known\n  GlobalKnownHostsFile none\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    redis = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", folder / "redis.sock", "--save", ""],
        stdout=subprocess.DEVNULL,
    )
    server = subprocess.Popen(
        [shutil.which("sshd", path=WHERE) or "", "-D", "-f", folder / "sshd_config"],
        stderr=subprocess.DEVNULL,
    )
    try:
        waited(folder / "redis.sock", redis)
        made = Switch(folder, folder / "ssh_config")
        for number in range(0, 128, 4):
            made.row(4, f"PORT|Ethernet{number}", {"speed": "100000", "mtu": "9100"})
        made.row(4, "MIRROR_SESSION|somebodys", SOMEBODYS)
        made.row(6, "MIRROR_SESSION_TABLE|somebodys", {"status": "active"})
        made.row(6, "SWITCH_CAPABILITY|switch", {"PORT_EGRESS_MIRROR_CAPABLE": "false"})
        for _ in range(1200):
            with socket.socket() as there:
                if there.connect_ex(("127.0.0.1", port)) == 0:
                    break
            Event().wait(0.05)
        yield made
    finally:
        for process in (server, redis):
            process.terminate()
            process.wait(60)


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
    refused("watches it already", "--source", "Ethernet40", *monitor)
    refused("monitor port of session somebodys", "--source", "Ethernet0", "--monitor", "Ethernet64")
    refused("is the monitor port", "--source", "Ethernet64", *monitor)
    refused("is watched by", "--source", "Ethernet0", "--monitor", "Ethernet40")
    refused("cannot mirror tx", "--source", "Ethernet0:tx", *monitor)
    refused("member of Vlan7", "--source", "Ethernet0", "--monitor", "Ethernet100")
    refused("routed port", "--source", "Ethernet0", "--monitor", "Ethernet104")
    refused("no port in the switch", "--source", "Ethernet3", *monitor)
    refused("one direction word", "--source", "Ethernet0", "--source", "Ethernet4:tx", *monitor)
    refused("not made from this machine", *ASKED, "--session", "somebodys")
    code, _, err = switch.verb("remove", "--session", "somebodys")
    assert (code, "not made from this machine" in err) == (2, True)
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
    assert "must be stated" in switch.verb("remove", "--host", "-oProxyCommand=x")[2]


def test_a_tunnel_is_a_session_too(switch: Switch) -> None:
    before = switch.held()
    tunnel = ("--erspan", "src=10.0.0.1,dst=10.0.0.2")
    assert switch.verb("apply", "--source", "Ethernet0", *tunnel)[1]["outcome"] == "changed"
    assert switch.verb("apply", "--source", "Ethernet0", *tunnel)[1]["outcome"] == "unchanged"
    assert switch.verb("remove")[0] == 0
    assert switch.held() == before
