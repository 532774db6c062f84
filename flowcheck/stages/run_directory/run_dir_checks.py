"""Checks of a folder named as a run directory: is it one of ours, or does it hold foreign
files?"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from flowcheck.errors import DECODE_ERRORS, ConfigError
from flowcheck.findings.catalog.run_directories import HOLDS_FOREIGN_FILES, HOLDS_SPECIAL_FILE
from flowcheck.stages.run_directory.process_liveness import MEMORY_PREFIX

FOLDERS = ("sockets", "pids", "learned", "previous", ".previous.tmp", "jobs")
"""That a chain makes below its run directory, and takes away again."""
LINKS = ("memory", "port")
"""To its shared memory; of a further job to the run that captures for it."""
CONFIGS = ("config.json", "previous/config.json", ".previous.tmp/config.json")
"""Where its settings lie while it runs, behind it, and where a start was killed."""
ALWAYS = {"source", "optimizer", "ring"}
"""Keys of a resolved job file, of every version."""


def is_run(root: Path) -> bool:
    """Whether a chain was started there, by its settings or the link to its shared memory."""
    memory = root / "memory"
    if memory.is_symlink() and memory.readlink().name.startswith(MEMORY_PREFIX):
        return True
    return any(_is_config(root / name) for name in CONFIGS)


def refuse_foreign_folder(root: Path) -> None:
    """Raises ConfigError where a chain that starts there would remove files of somebody else."""
    if is_run(root):
        return
    # A job that was learned elsewhere may be put where it is to be followed ([learned]).
    given = "learned" if (root / "learned" / "job.json").is_file() else None
    found = [f"{name}/" for name in FOLDERS if name != given and _holds_any(root / name)]
    found += [name for name in ("memory", "config.json", "trace") if _is_there(root / name)]
    if found:
        raise ConfigError("run", str(root), HOLDS_FOREIGN_FILES(found))


def refuse_special_files(root: Path) -> None:
    """Raises ConfigError where a run directory holds anything but files, folders, and the two links
    that a chain makes there: reading a pipe would wait for ever, and a link may lead to an endless
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
    return isinstance(found, dict) and found.keys() >= ALWAYS


def _is_there(path: Path) -> bool:
    """A file, or a link wherever it leads: an empty file is what a crash leaves of ours."""
    return path.is_symlink() or (path.is_file() and path.stat().st_size > 0) or _holds_any(path)


def _holds_any(path: Path) -> bool:
    return path.is_dir() and next(path.iterdir(), None) is not None
