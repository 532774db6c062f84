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
"""Seconds that a local command may run. A choice: a longer limit delays the error, a shorter one
fails on a busy machine."""
MOST_BYTES = 16 << 20
"""Largest output of a command, bytes. A choice: stops a command with endless output before it
fills the memory."""
STDERR_SHOWN_BYTES = 4096
"""Bytes of standard error that an error message shows (the last ones). A choice of layout."""
SSH_ERROR_EXIT = 255
"""Exit code of ssh for its own errors (ssh(1), EXIT STATUS); other codes come from the remote
command."""


class ProgramTimeoutError(StateError):
    """A program ended itself after its own --timeout (SIGALRM)."""


class OutcomeUnknownError(StateError):
    """A program was killed at its time limit, or ssh exited with 255: what it started on the other
    side may still run."""


def run_switch_command(command: Sequence[str], *, limit_s: float = LIMIT_S) -> str:
    """Runs a local program and returns its standard output.

    limit_s: seconds after which the program is killed.
    The program inherits the lock (apply_journal.py) and holds it if it outlives this process.

    Raises StateError with the program's message if it is missing, fails, or prints more than
    MOST_BYTES; ProgramTimeoutError or OutcomeUnknownError (both are StateErrors) if it runs out of
    time.
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
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - STDERR_SHOWN_BYTES))
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
        heard = (
            said or out[-STDERR_SHOWN_BYTES:].decode(errors="replace").strip() or "no reason given"
        )
        kind = OutcomeUnknownError if process.returncode == SSH_ERROR_EXIT else StateError
        told = " ".join(heard.split())
        raise kind(PROGRAM_FAILED(program=command[0], code=process.returncode, said=told))
    return out.decode(errors="replace")


def run_json(command: Sequence[str]) -> Any:
    """Runs a program and decodes its standard output as JSON; None if it prints nothing. Raises
    StateError if the program fails or prints no JSON."""
    out = run_switch_command(command)
    try:
        # A device's name may have control characters, which ip and tc print as they are.
        return json.loads(out, strict=False) if out.strip() else None
    except ValueError as error:
        raise StateError(NO_JSON(command=" ".join(command), error=error)) from error


HOST = r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]{0,254}"
SSH_LIMIT_S = 60
"""Seconds that a command over ssh may run, CONNECT_S included. A choice: switches answer slowly; a
longer limit delays the error."""
CONNECT_S = 10
"""Seconds for ssh to connect (ssh_config(5), ConnectTimeout). A choice: a longer limit delays the
error of a switch that is off."""
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
    """Runs commands on a host over ssh, one connection per call."""

    def __init__(self, host: str | None, config: Path | None) -> None:
        """Raises ConfigError where the host is missing or not a valid name."""
        if host is None or not re.fullmatch(HOST, host, re.ASCII):
            raise ConfigError("--host", host, SONIC_HOST_NEEDED())
        self.host = host
        file = ("-F", str(config)) if config else ()
        options = (word for option in OPTIONS for word in ("-o", option))
        self._head = ("ssh", *file, "-T", *options, "--", host)

    def command(self, *commands: Sequence[str]) -> tuple[str, ...]:
        """The local ssh command that runs `commands` on the host, one after another until one
        fails."""
        return (*self._head, " && ".join(shlex.join(words) for words in commands))

    def run(self, *commands: Sequence[str]) -> str:
        """Runs `commands` on the host and returns their standard output. Raises StateError with
        the message of ssh or of the switch."""
        return run_switch_command(self.command(*commands), limit_s=SSH_LIMIT_S)
