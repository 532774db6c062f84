"""Runs programs with limits on time and output, on this machine or on a switch over ssh."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Any

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_sonic_sessions import SONIC_HOST_NEEDED
from flowcheck.findings.catalog.switch_changes import (
    NO_JSON,
    PROGRAM_FAILED,
    PROGRAM_KILLED,
    PROGRAM_MISSING,
    PROGRAM_SAYS_TOO_MUCH,
    PROGRAM_TIMED_OUT,
)

LIMIT_S = 30
"""Seconds a local command may take. A choice: longer delays the error, shorter fails on a busy
machine."""
MOST_BYTES = 16 << 20
"""Bytes of a command's output. A choice: stops a command that never ends talking from taking all
memory."""
SAID_BYTES = 4096
"""Bytes of standard error that an error shows, its end. A choice of layout."""
UNHEARD = 255
"""ssh(1), EXIT STATUS: an error of ssh's own; else it is that of the command."""


class ProgramTimeoutError(StateError):
    """A program waited as long as its own --timeout said, and ended itself by an alarm."""


class OutcomeUnknownError(StateError):
    """A program was killed at its limit, or ended with 255, as ssh does when its connection dies:
    what it began elsewhere may go on."""


def run(command: Sequence[str], *, limit_s: float = LIMIT_S) -> str:
    """Standard output.

    The program inherits the lock (apply_journal.py), and keeps it where it outlives this process.

    Raises StateError with what the program said where it fails, is missing, takes longer than
    `limit_s` or says more than MOST_BYTES.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                close_fds=False,
            )
        except OSError as error:
            raise StateError(PROGRAM_MISSING(program=command[0], error=error.strerror)) from error
        timer = Timer(limit_s, process.kill)
        timer.start()
        try:
            with process:
                assert process.stdout is not None
                out = process.stdout.read(MOST_BYTES + 1)
                if len(out) > MOST_BYTES:
                    process.kill()
        except BaseException:
            process.kill()
            raise
        finally:
            late = not timer.is_alive()
            timer.cancel()
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - SAID_BYTES))
        said = errors.read().decode(errors="replace").strip()
    if late and process.returncode:
        what = PROGRAM_KILLED(
            program=command[0], limit_s=limit_s, said=said or "it printed nothing"
        )
        raise OutcomeUnknownError(what)
    if len(out) > MOST_BYTES:
        raise StateError(PROGRAM_SAYS_TOO_MUCH(program=command[0], mib=MOST_BYTES >> 20))
    if process.returncode == -signal.SIGALRM:
        raise ProgramTimeoutError(PROGRAM_TIMED_OUT(program=command[0], said=said))
    if process.returncode:
        heard = said or out[-SAID_BYTES:].decode(errors="replace").strip() or "no reason given"
        kind = OutcomeUnknownError if process.returncode == UNHEARD else StateError
        told = " ".join(heard.split())
        raise kind(PROGRAM_FAILED(program=command[0], code=process.returncode, said=told))
    return out.decode(errors="replace")


def run_json(command: Sequence[str]) -> Any:
    """Standard output as JSON; None where there is none. Raises StateError."""
    out = run(command)
    try:
        # A device's name may have control characters, which ip and tc print as they are.
        return json.loads(out, strict=False) if out.strip() else None
    except ValueError as error:
        raise StateError(NO_JSON(command=" ".join(command), error=error)) from error


HOST = r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]{0,254}"
SSH_LIMIT_S = 60
"""Seconds a command over ssh may take, CONNECT_S included. A choice: switches answer slowly; longer
delays the error."""
CONNECT_S = 10
"""Seconds for ssh to connect (ssh_config(5), ConnectTimeout). A choice: longer delays the error of
a switch that is off."""
OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    f"ConnectTimeout={CONNECT_S}",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    # A shared connection would outlive the command that began it, with its pipes open.
    "ControlMaster=no",
    "ControlPath=none",
    "LogLevel=ERROR",
)


class SshShell:
    """A host that takes one command line a connection."""

    def __init__(self, host: str | None, config: Path | None) -> None:
        """Raises ConfigError where the host is missing or not a valid name."""
        if host is None or not re.fullmatch(HOST, host, re.ASCII):
            raise ConfigError("--host", host, SONIC_HOST_NEEDED())
        self.host = host
        file = ("-F", str(config)) if config else ()
        options = (word for option in OPTIONS for word in ("-o", option))
        self._head = ("ssh", *file, "-T", *options, "--", host)

    def command(self, *commands: Sequence[str]) -> tuple[str, ...]:
        """What to run here, so that these run there, one after another until one fails."""
        return (*self._head, " && ".join(shlex.join(words) for words in commands))

    def run(self, *commands: Sequence[str]) -> str:
        """Standard output of all. Raises StateError with what ssh or the switch said."""
        return run(self.command(*commands), limit_s=SSH_LIMIT_S)
