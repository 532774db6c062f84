"""Commands on a switch, by the system's own ssh: keys, jump hosts and the like are its business."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from flowcheck.errors import ConfigError
from flowcheck.ops.switch.apply.commands import run

HOST = r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]{0,254}"
LIMIT_S = 60
CONNECT_S = 10
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


class Shell:
    """A host that takes one command line a connection."""

    def __init__(self, host: str | None, config: Path | None) -> None:
        """Raises ConfigError where the host is none."""
        if host is None or not re.fullmatch(HOST, host, re.ASCII):
            raise ConfigError("--host", host, "must be stated: the switch, as ssh knows it")
        self.host = host
        file = ("-F", str(config)) if config else ()
        options = (word for option in OPTIONS for word in ("-o", option))
        self._head = ("ssh", *file, "-T", *options, "--", host)

    def command(self, *commands: Sequence[str]) -> tuple[str, ...]:
        """What to run here, so that these run there, one after another until one fails."""
        return (*self._head, " && ".join(shlex.join(words) for words in commands))

    def run(self, *commands: Sequence[str]) -> str:
        """Standard output of all. Raises StateError with what ssh or the switch said."""
        return run(self.command(*commands), limit_s=LIMIT_S)
