"""The user account that a chain runs as when root starts it."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.privileges import NO_SUCH_USER

NAME = "flowcheck"
"""The system user that scripts/node/install-node makes."""
ROOT = "root"
KEY = "services.user"
NUMBERS = range(61000, 61184)
"""Of users without an account: below systemd's dynamic users (61184 to 65519), above everything
that systemd and the distributions give out (60000 and less, 60001 to 60705, systemd.io/UIDS-GIDS).
"""
CACHE = Path("/var/cache")


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a process is to be."""

    name: str
    user: int
    group: int
    groups: tuple[int, ...]
    """Supplementary ones."""
    home: Path

    @property
    def is_root(self) -> bool:
        return self.user == 0

    @property
    def words(self) -> str:
        """`user flowcheck (61000)`."""
        return f"user {self.name} ({self.user})"


def account(stated: str | None) -> Account:
    """That of the job file; None: the system user flowcheck, or a number that is nobody's where
    there is none. nobody's own would be that of other programs, too, which could then write the
    replica. Raises ConfigError where there is no such user."""
    if stated is not None:
        return _named(stated)
    with suppress(ConfigError):
        return _named(NAME)
    return _of_number(next(_free(), NUMBERS[0]), NAME)


def account_of(user: int) -> Account:
    """Of the owner of a file."""
    with suppress(KeyError):
        return _named(pwd.getpwuid(user).pw_name)
    return _of_number(user, NAME)


def _named(stated: str) -> Account:
    try:
        found = pwd.getpwnam(stated)
    except KeyError:
        if stated.isdecimal() and stated.isascii() and 0 < int(stated) < 1 << 31:
            return account_of(int(stated))
        raise ConfigError(KEY, stated, NO_SUCH_USER()) from None
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    home = Path(found.pw_dir)
    return Account(
        found.pw_name,
        found.pw_uid,
        found.pw_gid,
        groups,
        home if _owns(home, found.pw_uid) else _cache(found.pw_uid),
    )


def _of_number(user: int, name: str) -> Account:
    return Account(name, user, user, (), _cache(user))


def _cache(user: int) -> Path:
    """torch and its compilers keep what they made in a home."""
    return CACHE / f"{NAME}-{user}"


def _owns(folder: Path, user: int) -> bool:
    with suppress(OSError):
        return folder.stat().st_uid == user
    return False


def _free() -> Iterator[int]:
    return (number for number in NUMBERS if not any(_there(ask, number) for ask in _ASKED))


_ASKED: tuple[Callable[[int], object], ...] = (pwd.getpwuid, grp.getgrgid)


def _there(ask: Callable[[int], object], number: int) -> bool:
    with suppress(KeyError):
        return ask(number) is not None
    return False
