"""Finds the paths that a command and its job file name: files to read, folders to write to."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import flowcheck
from flowcheck.stages.privilege.mount_namespace import PathNeed, PathUse

JOURNAL = "gradient_log.folder"
OUTPUT_FOLDER_KEYS = (
    *("run", "checkpoint", "persist.target", "persist.targets", "persist.staging", "serve.staging"),
    JOURNAL,
)
"""Keys of the job file that name folders to which the chain writes."""
LOG = "gradient_log.file"


def job_file_tables(job: Path | None) -> dict[str, Any]:
    """The tables of a job file; {} if it cannot be read or parsed. The reader of the settings
    reports errors."""
    if job is not None:
        with suppress(OSError, ValueError, RecursionError):
            return tomllib.loads(job.read_text())
    return {}


def needs_of_python() -> list[PathNeed]:
    """The paths of the Python interpreter and of everything it imports."""
    folders = {*map(Path, (sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path[1:]))}
    folders.add(Path(flowcheck.__file__).parents[1])
    found = [PathNeed(folder, PathUse.FOLDER) for folder in sorted(folders) if folder.is_dir()]
    return [*found, PathNeed(Path(sys.executable), PathUse.FILE)]


def needs_of_job_file(job: Path | None) -> list[PathNeed]:
    """The job file, and the files that it names to be read."""
    tree = job_file_tables(job)
    found = [] if job is None else needs_of_file(job)
    for key, text in setting_texts(tree):
        if key not in OUTPUT_FOLDER_KEYS and key != LOG:
            found += needs_of_setting(text)
    learned = tree.get("learned")
    if isinstance(learned, str):
        found += [
            PathNeed(p.absolute(), PathUse.FILE)
            for p in Path(learned).parent.glob("*")
            if p.is_file()
        ]
    return found


def needs_of_setting(text: str) -> list[PathNeed]:
    """The paths in a text of the job file: a path, "file.py:function", "package.module:function" or
    "net_pcap0,rx_pcap=FILE"."""
    place, colon, _ = text.rpartition(":")
    if colon and place.endswith(".py"):
        return [*needs_of_file(Path(place)), *needs_of_code(Path(place).parent)]
    if colon and all(part.isidentifier() for part in place.split(".")):
        first = place.split(".")[0]
        here = Path(first).is_dir() or Path(f"{first}.py").is_file()
        return needs_of_code(Path()) if here else []
    words = [text, *(word.partition("=")[2] for word in text.split(",") if "=" in word)]
    return [need for word in words for need in needs_of_file(Path(word.removeprefix("file://")))]


def needs_of_file(path: Path) -> list[PathNeed]:
    """The need to read a file or folder; [] if it does not exist."""
    with suppress(OSError, ValueError):
        if path.is_dir():
            return [PathNeed(path.absolute(), PathUse.FOLDER)]
        if path.exists():
            return [PathNeed(path.absolute(), PathUse.FILE)]
    return []


def needs_of_code(folder: Path) -> list[PathNeed]:
    return [PathNeed(folder.absolute(), PathUse.CODE)] if folder.is_dir() else []


def folders_of_job(job: Path | None, *, live: bool) -> list[Path]:
    """The folders to which the job's chain writes, without its run directory. live: False for a
    replay, which writes only gradients where the job file says."""
    found = []
    for key, text in setting_texts(job_file_tables(job)):
        local = text.removeprefix("file://")
        written = live and key in OUTPUT_FOLDER_KEYS and key != "run" and "://" not in local
        if key == LOG:
            found.append(Path(local).parent)
        elif key == JOURNAL or written:
            found.append(Path(local))
    return found


def setting_texts(tree: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, text) for each text in the settings."""
    if isinstance(tree, str):
        if tree and "\0" not in tree:
            yield key, tree
    elif isinstance(tree, dict):
        for name, value in tree.items():
            yield from setting_texts(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, list):
        for value in tree:
            yield from setting_texts(value, key)
