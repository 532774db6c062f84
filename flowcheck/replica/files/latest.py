"""Which checkpoint of a folder is the newest that is whole and on disk: a file of one name.

It moves last: every file of a checkpoint is synced, its folder takes its name, and only then does
`latest`. A text, not a link: object stores have none.
"""

from __future__ import annotations

from pathlib import Path

from flowcheck.replica.files.manifest import MANIFEST
from flowcheck.whole import write_whole

LATEST = "latest"
NAME_MAX = 255
"""Bytes of a file's name (POSIX NAME_MAX)."""


def point(folder: Path, name: str) -> None:
    """`folder`/`name` is the newest from now on; it is whole and on disk already."""
    write_whole(folder / LATEST, name.encode() + b"\n")


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a folder; None where nothing was ever said, or it is gone."""
    if not (folder / LATEST).is_file():
        return None
    try:
        with (folder / LATEST).open("rb") as file:
            name = file.read(NAME_MAX + 2).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not name or Path(name).name != name:
        return None
    found = folder / name
    return found if (found / MANIFEST).is_file() else None
