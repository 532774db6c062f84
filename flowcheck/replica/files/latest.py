"""Which checkpoint of a folder is the newest that is whole and on disk: a file of one name.

It moves last: every file of a checkpoint is synced, its folder takes its name, and only then does
`latest`. A text, not a link: object stores have none.
"""

from __future__ import annotations

from pathlib import Path

from flowcheck.replica.files.manifest import MANIFEST
from flowcheck.whole import write_whole

LATEST = "latest"
STEP = "step-"
"""Before the number, in the name of a checkpoint."""
NAME_MAX = 255
"""Bytes of a file's name (POSIX NAME_MAX)."""


def point(folder: Path, name: str) -> None:
    """`folder`/`name` is the newest from now on; it is whole and on disk already."""
    write_whole(folder / LATEST, name.encode() + b"\n")


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a folder; None where nothing was ever said, or it is gone."""
    found = named(folder)
    return found if found is not None and (found / MANIFEST).is_file() else None


def named(folder: Path) -> Path | None:
    """What `latest` names, whether it is there or not; None where it names nothing."""
    if not (folder / LATEST).is_file():
        return None
    try:
        with (folder / LATEST).open("rb") as file:
            name = file.read(NAME_MAX + 2).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not name or Path(name).name != name:
        return None
    return folder / name


def missing(folder: Path) -> str:
    """What of the checkpoint that `latest` names is not there, a sentence; empty: all is, or it
    names none of ours (DeepSpeed has a file of this name as well)."""
    found = named(folder)
    if found is None or not found.name.startswith(STEP) or (found / MANIFEST).is_file():
        return ""
    if any(found.glob("*_model_states.pt")):
        return ""
    lacks = f"holds no {MANIFEST}" if found.is_dir() else "is not there"
    whole = sorted(path.parent.name for path in folder.glob(f"{STEP}*/{MANIFEST}"))
    there = f"whole are {', '.join(whole)}" if whole else "nothing whole is there"
    return f"{folder / LATEST} names {found.name}, which {lacks} ({there})"
