"""Puts the hook into this process: listens, and has torch tell when an optimizer has stepped."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowcheck.hook.protocol import TOKEN_BYTES_MIN

if TYPE_CHECKING:
    from flowcheck.hook.server import HookServer
    from flowcheck.hook.step_values import StepValues

ADDRESS, TOKEN_FILE = "FLOWCHECK_HOOK", "FLOWCHECK_HOOK_TOKEN_FILE"
"""Environment variables: where the hook listens, HOST:PORT; the file with the token."""
RANK = "FLOWCHECK_HOOK_RANK"
"""Environment variable: the rank that listens; without it rank 0."""
_begun: list[bool] = []
"""Not empty: this process has installed it, or tries to. To import torch asks again."""


def install_from_environment() -> None:
    """Installs the hook if FLOWCHECK_HOOK is set and it is not installed yet. Whatever is wrong is
    said on stderr, and training goes on without it."""
    address = os.environ.get(ADDRESS)
    if not address or _begun:
        return
    _begun.append(True)
    try:
        rank = os.environ.get(RANK, "0")
        if not rank.isdecimal():
            raise ValueError(f"{RANK} is {rank!r}, not the number of a rank")
        host, port = parse_address(address)
        hook = Hook(host, port, read_token(os.environ.get(TOKEN_FILE)), int(rank))
        hook.install()
    except Exception as error:
        say(f"it is off: {error}")


def parse_address(address: str) -> tuple[str, int]:
    """(host, port). Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{ADDRESS} is {address!r}, not an address and a port, such as "
                         "127.0.0.1:9470")  # fmt: skip
    return host.strip("[]"), int(port)


def read_token(path: str | None) -> bytes:
    """The token in a file. Raises ValueError, OSError."""
    if not path:
        raise ValueError(f"{TOKEN_FILE} names no file with a token; one is made by: "
                         "(umask 077; openssl rand -hex 32 > hook.token)")  # fmt: skip
    token = Path(path).read_bytes().strip()
    if len(token) < TOKEN_BYTES_MIN:
        raise ValueError(
            f"{path} holds {len(token)} bytes, and a token has {TOKEN_BYTES_MIN} or more"
        )
    return token


class Hook:
    """Reads at the end of steps. It listens from the first step on, in the process of its rank: a
    launcher, which imports torch as well, makes none."""

    def __init__(self, host: str, port: int, token: bytes, rank: int) -> None:
        self._host, self._port, self._token, self._rank = host, port, token, rank
        self._values: StepValues | None = None
        self._server: HookServer | None = None
        self._handle: Any = None

    def install(self) -> None:
        """Has torch tell of each step of each optimizer."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._handle = register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        try:
            if self._values is None and not self._listens():
                return
            assert self._values is not None
            self._values.stepped(optimizer)
        except Exception as error:
            self._remove()
            say(f"it failed, and is off: {type(error).__name__}: {error}")

    def _listens(self) -> bool:
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized():
            return False  # what is stepped is no model that ranks train together
        if dist.get_rank() != self._rank:
            self._remove()
            return False
        from flowcheck.hook.server import HookServer
        from flowcheck.hook.step_values import StepValues

        self._values = StepValues()
        self._server = HookServer(self._values, self._host, self._port, self._token)
        self._server.start()
        say(f"it listens at {self._host}:{self._server.port}")
        return True

    def _remove(self) -> None:
        self._handle.remove()
        if self._server is not None:
            self._server.close()


def say(text: str) -> None:
    print(f"flowcheck hook: {text}", file=sys.stderr, flush=True)
