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

SYSTEM_USER = "flowcheck"
"""Name of the system user that scripts/node/install-node creates."""
ROOT = "root"
KEY = "services.user"
FREE_USER_NUMBERS = range(61000, 61184)
"""User numbers for a chain if there is no system user. They are below systemd's dynamic users
(61184 to 65519), and above all numbers that systemd and the distributions assign (up to 60000, and
60001 to 60705; systemd.io/UIDS-GIDS)."""
CACHE = Path("/var/cache")


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a process runs as."""

    name: str
    user: int
    group: int
    groups: tuple[int, ...]
    """Supplementary groups."""
    home: Path

    @property
    def is_root(self) -> bool:
        return self.user == 0

    @property
    def words(self) -> str:
        """The account in a message: `user flowcheck (61000)`."""
        return f"user {self.name} ({self.user})"


def account(stated: str | None) -> Account:
    """The account that a chain runs as. stated: the user in the job file; None: the system user
    `flowcheck`, or if there is none, a number that no user has.

    The user `nobody` is not used, since other programs run as nobody and could write to the
    replica. Raises ConfigError if there is no such user.
    """
    if stated is not None:
        return _named(stated)
    with suppress(ConfigError):
        return _named(SYSTEM_USER)
    return _of_number(next(_free(), FREE_USER_NUMBERS[0]), SYSTEM_USER)


def account_of(user: int) -> Account:
    """The account of a user number, such as a file's owner."""
    with suppress(KeyError):
        return _named(pwd.getpwuid(user).pw_name)
    return _of_number(user, SYSTEM_USER)


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
    """The home of an account that does not own a home. torch and its compilers store files
    there."""
    return CACHE / f"{SYSTEM_USER}-{user}"


def _owns(folder: Path, user: int) -> bool:
    with suppress(OSError):
        return folder.stat().st_uid == user
    return False


def _free() -> Iterator[int]:
    return (
        number for number in FREE_USER_NUMBERS if not any(_there(ask, number) for ask in _ASKED)
    )


_ASKED: tuple[Callable[[int], object], ...] = (pwd.getpwuid, grp.getgrgid)


def _there(ask: Callable[[int], object], number: int) -> bool:
    with suppress(KeyError):
        return ask(number) is not None
    return False
