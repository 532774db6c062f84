"""Checks whether a folder is a run directory of FlowCheck, and whether it holds foreign files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from flowcheck.errors import DECODE_ERRORS, ConfigError
from flowcheck.findings.catalog.run_directories import (
    BEING_STARTED,
    FOUND_EMPTY,
    FOUND_FILE,
    FOUND_NOTHING,
    FOUND_OTHER,
    HOLDS_FOREIGN_FILES,
    HOLDS_SPECIAL_FILE,
    NO_CHAIN_STARTED,
    OF_TWO_OWNERS,
    RUN_IS_FILE,
)
from flowcheck.findings.finding import Finding
from flowcheck.stages.run_directory.process_liveness import MEMORY_PREFIX
from flowcheck.stages.run_directory.start_notice import is_being_started

FOLDERS = ("sockets", "pids", "learned", "previous", ".previous.tmp", "jobs")
"""Folders that a chain creates in its run directory and removes again."""
LINKS = ("memory", "port")
"""Links in a run directory: to its shared memory, and from a further job's run directory to the run
that captures for it."""
CONFIGS = ("config.json", "previous/config.json", ".previous.tmp/config.json")
"""Places of a chain's settings: of the last run, of the run before, and after a start that was
killed."""
SETTINGS_OF_EVERY_RELEASE = {"source", "optimizer", "ring"}
"""Keys that the resolved settings have in every release."""


def is_run(root: Path) -> bool:
    """Whether a chain was started in this folder, by its settings or the link to its shared
    memory."""
    memory = root / "memory"
    if memory.is_symlink() and memory.readlink().name.startswith(MEMORY_PREFIX):
        return True
    return any(_is_config(root / name) for name in CONFIGS)


def chain_root(run: Path) -> Path:
    """The run directory of the chain: of one of several jobs the one that all of them are in
    (RunDir.job_run_dir), of the records of the run before the one that holds them."""
    if run.name == "previous" and is_run(run.parent):
        return chain_root(run.parent)
    chain = run.parent.parent
    own = run.parent.name == "jobs" and run.name.isdecimal() and is_run(chain)
    return chain if own else run


def what_is_at(root: Path) -> Finding:
    """What is at a path where no chain was started."""
    if not os.path.lexists(root):
        return FOUND_NOTHING()
    if not root.is_dir():
        return FOUND_FILE()
    try:
        empty = not any(root.iterdir())
    except OSError:
        empty = False
    return FOUND_EMPTY() if empty else FOUND_OTHER()


def no_chain_finding(root: Path) -> Finding:
    """That no chain was started at a path, with what is there instead, or that one is just being
    started."""
    if is_being_started(root):
        return BEING_STARTED(run=root)
    found = what_is_at(root)
    if found.is_any_of(FOUND_FILE):
        return RUN_IS_FILE(root)
    return NO_CHAIN_STARTED(run=root, found=found)


def refuse_foreign_folder(root: Path) -> None:
    """Raises ConfigError if a chain that starts in this folder would remove files that FlowCheck
    did not write."""
    if is_run(root):
        return
    # A job that was learned elsewhere may be put where it is to be followed ([learned]).
    given = "learned" if (root / "learned" / "job.json").is_file() else None
    found = [f"{name}/" for name in FOLDERS if name != given and _holds_any(root / name)]
    found += [name for name in ("memory", "config.json", "trace") if _is_there(root / name)]
    if found:
        raise ConfigError("run", str(root), HOLDS_FOREIGN_FILES(found))


def refuse_two_owners(root: Path) -> None:
    """Raises ConfigError if this user's run directory holds what another user left there: it can
    neither be read nor removed. Root can do both."""
    user = os.geteuid()
    if user == 0 or not root.is_dir() or root.stat().st_uid != user:
        return
    for path in (root / name for name in ("config.json", *FOLDERS)):
        with suppress(FileNotFoundError):
            if (owner := path.lstat().st_uid) != user:
                raise ConfigError(
                    "run",
                    str(root),
                    OF_TWO_OWNERS(path=path.name, owner=owner, user=user, run=root),
                )


def refuse_special_files(root: Path) -> None:
    """Raises ConfigError if a run directory holds anything but files, folders, and the two links
    that a chain creates: reading a pipe would wait for ever, and a link may lead to an endless
    device."""
    for where in (root, *(root / name for name in FOLDERS), *root.glob("jobs/*")):
        with suppress(OSError), os.scandir(where) as entries:
            for entry in entries:
                own = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
                known = entry.name in LINKS and entry.is_symlink()
                if not (own or known or where.name == "sockets"):
                    raise ConfigError("run", str(root), HOLDS_SPECIAL_FILE(entry.path))


def _is_config(path: Path) -> bool:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, *DECODE_ERRORS):
        return False
    return isinstance(found, dict) and found.keys() >= SETTINGS_OF_EVERY_RELEASE


def _is_there(path: Path) -> bool:
    """Whether there is a non-empty file, a non-empty folder or any link at `path`. A crash of
    FlowCheck may leave an empty file."""
    return path.is_symlink() or (path.is_file() and path.stat().st_size > 0) or _holds_any(path)


def _holds_any(path: Path) -> bool:
    return path.is_dir() and next(path.iterdir(), None) is not None
