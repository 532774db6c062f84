"""A switch with SONiC: a real ssh server, whose commands keep a real redis as a switch does."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from support.free import free_port
from support.sonic_commands import EACH

from tests.unit.test_cli import flowcheck

PROGRAMS = ("sshd", "ssh", "ssh-keygen", "redis-server", "redis-cli")
WHERE = os.environ["PATH"] + ":/usr/sbin"
MISSING = [program for program in PROGRAMS if shutil.which(program, path=WHERE) is None]
COMMANDS = Path(__file__).with_name("sonic_commands.py")
SOMEBODYS = {"type": "SPAN", "dst_port": "Ethernet64", "src_port": "Ethernet40", "direction": "RX"}
FAST = 124
"""Number of the port of 400 Gb/s; others have 100."""


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


def _files(folder: Path, port: int) -> None:
    """Of ssh at both ends, and the commands of the switch."""
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


@contextmanager
def running(folder: Path) -> Iterator[Switch]:
    """With somebody's session beside, a banner, and a shell that talks before it obeys."""
    port = free_port()
    _files(folder, port)
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
            speed = "400000" if number == FAST else "100000"
            made.row(4, f"PORT|Ethernet{number}", {"speed": speed, "mtu": "9100"})
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
