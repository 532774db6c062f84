"""The file `latest`: it names the newest complete checkpoint of a folder.

It is written last: first every file of a checkpoint is synced, then the checkpoint's folder gets
its final name, then `latest` names the folder. `latest` is a text file, not a symbolic link,
because object stores have no links.
"""

from __future__ import annotations

from pathlib import Path

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import StateError
from flowcheck.findings.catalog.refused_restores import (
    HOLDS_NO_MANIFEST,
    IS_NOT_THERE,
    LATEST_NOT_WHOLE,
    NONE_WHOLE,
    WHOLE_ARE,
)
from flowcheck.findings.catalog.untrusted_names import LATEST_TOO_LONG
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.manifest import MANIFEST
from flowcheck.untrusted_paths import NAME_BYTES_MAX, checked_checkpoint_name

LATEST = "latest"
CHECKPOINT_NAME_PREFIX = "step-"
"""Prefix of a checkpoint's name, before the step's number."""
TEXT_BYTES_MAX = NAME_BYTES_MAX + 1
"""Most bytes of the file `latest`: a name and a newline."""


def write_latest(folder: Path, name: str) -> None:
    """Makes `name` the newest checkpoint of `folder`. The checkpoint must already be complete and
    on disk."""
    write_atomically(folder / LATEST, name.encode() + b"\n")


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of a folder; None if no `latest` was written, or the checkpoint that it
    names is gone."""
    found = checkpoint_named_by_latest(folder)
    return found if found is not None and (found / MANIFEST).is_file() else None


def checkpoint_named_by_latest(folder: Path) -> Path | None:
    """The path that `latest` names, whether it exists or not. None: there is no `latest`, or it
    names no checkpoint of FlowCheck (DeepSpeed writes a file of this name too)."""
    if not (folder / LATEST).is_file():
        return None
    try:
        with (folder / LATEST).open("rb") as file:
            return folder / latest_name(file.read(TEXT_BYTES_MAX + 1), str(folder / LATEST))
    except (OSError, StateError):
        return None


def latest_name(text: bytes, where: str) -> str:
    """The checkpoint's name in the text of `latest`. where: the file's name in errors. Raises
    StateError if the text is not the name of a checkpoint of FlowCheck."""
    if len(text) > TEXT_BYTES_MAX:
        raise StateError(LATEST_TOO_LONG(where=where, bytes=TEXT_BYTES_MAX))
    told = text.decode(errors="replace").removesuffix("\n")
    return checked_checkpoint_name(told, where)


def why_latest_is_missing(folder: Path) -> Finding | None:
    """Why the checkpoint that `latest` names is not complete; None: it is, or `latest` names
    something else than a checkpoint of FlowCheck."""
    found = checkpoint_named_by_latest(folder)
    if found is None or (found / MANIFEST).is_file():
        return None
    if any(found.glob("*_model_states.pt")):
        return None
    fault = HOLDS_NO_MANIFEST(MANIFEST) if found.is_dir() else IS_NOT_THERE()
    whole = sorted(
        path.parent.name for path in folder.glob(f"{CHECKPOINT_NAME_PREFIX}*/{MANIFEST}")
    )
    there = WHOLE_ARE(whole) if whole else NONE_WHOLE()
    named = {"file": folder / LATEST, "checkpoint": found.name}
    return LATEST_NOT_WHOLE(**named, fault=fault, there=there)
