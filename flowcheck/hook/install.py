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
_MAKE_ONE = "one is made by: (umask 077; openssl rand -hex 32 >"
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
        file = os.environ.get(TOKEN_FILE)
        hook = Hook(host, port, hook_token(file), int(rank))
        if file and Path(file).stat().st_mode & 0o004:
            say(f"every user of this machine can read {file}: chmod 600 {file}")
        hook.install()
    except Exception as error:
        say(f"it is off: {error}")


def parse_address(address: str) -> tuple[str, int]:
    """(host, port). Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address and port, such as 127.0.0.1:9470; correct "
                         f"{ADDRESS} or --listen")  # fmt: skip
    return host.strip("[]"), int(port)


def hook_token(path: str | None) -> bytes:
    """The token in a file. Raises ValueError."""
    if not path:
        raise ValueError(f"neither {TOKEN_FILE} nor --token-file names a file with a token; "
                         f"{_MAKE_ONE} hook.token)")  # fmt: skip
    try:
        token = Path(path).read_bytes().strip()
    except OSError as error:
        raise ValueError(f"the token in {path} cannot be read: {error.strerror}; "
                         f"{_MAKE_ONE} {path})") from error  # fmt: skip
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
