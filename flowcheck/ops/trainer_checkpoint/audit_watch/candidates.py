"""Finds the checkpoints in a folder, and tells whether their writer is done with them.

Nothing here reads tensors or unpickles: names, sizes, times, and the directory of an archive.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from flowcheck.checkpoint_signatures import checkpoint_kind
from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.file_audits import VANISHED
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.finding import Finding
from flowcheck.ops.trainer_checkpoint.audit_watch.whole_folders import (
    CHECKPOINT_SUFFIXES,
    beginning,
    holds_model,
    is_beside_model,
    is_dcp,
    missing_in_file,
    missing_in_folder,
)
from flowcheck.replica.checkpoint_files.manifest import manifest_path

DEPTH_MAX = 4
"""Levels of folders that are looked into. A choice: `run/step-400/rank-3/state.pt` is three."""
ENTRIES_MAX = 200_000
"""Entries that one look takes. A choice: a look at as many takes about a second."""
DEEPSPEED_ENDS = ("_model_states.pt", "_optim_states.pt")
"""Ends of the names of DeepSpeed's files (deepspeed_format.py)."""
UNFINISHED_SUFFIXES = frozenset((".tmp", ".part", ".partial", ".temp", ".incomplete", ".swp"))
"""Suffixes of files that get another name once they are complete."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file or folder that may be a checkpoint, as one look found it."""

    path: Path
    stamp: str
    """Sizes, times of change and inodes of all its files: equal in two looks, it stood still."""
    time_ns: int
    """When the newest of its files changed, since 1970."""
    folder: bool
    parts: frozenset[str] = frozenset()
    """What tells the content of each file of a folder from another, without those that their writer
    renames or removes."""

    def lost_parts_of(self, earlier: Candidate) -> bool:
        """Whether it is an earlier one of which files were removed since, and nothing else."""
        return self.folder and self.path == earlier.path and self.parts < earlier.parts


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a folder found."""

    candidates: tuple[Candidate, ...]
    cut: bool = False
    """True: there are more than ENTRIES_MAX entries."""


def look_at(root: Path) -> Look:
    """The candidates below a folder, oldest first. Links are not followed; names that begin with a
    dot, or end as unfinished files do, are left out. Raises OSError if the folder cannot be
    read."""
    found: list[Candidate] = []
    left = ENTRIES_MAX
    folders = [(root, 0)]
    while folders:
        folder, depth = folders.pop()
        try:
            entries = _entries(folder)
        except OSError:
            if folder == root:
                raise
            continue  # it was removed, or renamed, since its name was read
        left -= len(entries)
        if left < 0:
            return Look(tuple(sorted(found, key=_age)), cut=True)
        if depth or is_dcp(entry.name for entry in entries):
            own = _folder_candidate(folder, entries)
            if own is not None:
                found.append(own)
                continue
        names = {entry.name for entry in entries}
        for entry in entries:
            if _is_passing(entry.name) or is_beside_model(folder, entry.name, names):
                continue
            mode, own = _file_candidate(entry)
            if stat.S_ISDIR(mode) and depth < DEPTH_MAX:
                folders.append((Path(entry.path), depth + 1))
            elif own is not None:
                found.append(own)
    return Look(tuple(sorted(found, key=_age)))


def _age(one: Candidate) -> tuple[int, str]:
    return one.time_ns, str(one.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return [entry for entry, _ in zip(found, range(ENTRIES_MAX + 1), strict=False)]


def _is_passing(name: str) -> bool:
    """Whether a name is that of a file that its writer renames later."""
    return name.startswith(".") or Path(name).suffix.lower() in UNFINISHED_SUFFIXES


def _file_candidate(entry: os.DirEntry[str]) -> tuple[int, Candidate | None]:
    """(mode, the candidate). Mode 0: it was removed meanwhile."""
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return 0, None
    if not stat.S_ISREG(found.st_mode):
        return found.st_mode, None
    return found.st_mode, Candidate(
        Path(entry.path), _stamp([("", found)]), found.st_mtime_ns, folder=False
    )


def _folder_candidate(folder: Path, entries: list[os.DirEntry[str]]) -> Candidate | None:
    """The folder as one checkpoint, if it is one or will be; else None."""
    if not _is_checkpoint_folder(folder, {entry.name for entry in entries}):
        return None
    held = sorted(_files_below(folder))
    newest_ns = max((own.st_mtime_ns for _, own in held), default=0)
    parts = frozenset(_stamp([one]) for one in held if not _is_passing(Path(one[0]).name))
    return Candidate(folder, _stamp(held), newest_ns, folder=True, parts=parts)


def _is_checkpoint_folder(folder: Path, names: set[str]) -> bool:
    """Whether the folder itself is a checkpoint. The formats' `recognizes` also take a folder that
    holds such folders: here each of them is one of its own."""
    return (
        is_dcp(names)
        or any(name.endswith(DEEPSPEED_ENDS) for name in names)
        or any(name.startswith("mp_rank_") for name in names)
        or holds_model(names)
        or manifest_path(folder).is_file()  # FlowCheck's own, left out later: see `is_own_output`
    )


def _files_below(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            try:
                yield str(path.relative_to(folder)), path.lstat()
            except OSError:
                continue


def _stamp(files: list[tuple[str, os.stat_result]]) -> str:
    told = [(name, own.st_size, own.st_mtime_ns, own.st_ino) for name, own in files]
    return xxhash.xxh3_128_hexdigest(repr(told).encode(errors="surrogateescape"))


def stamp_of(candidate: Candidate) -> str | None:
    """The stamp now; None: it is gone."""
    path = candidate.path
    try:
        if candidate.folder:
            held = sorted(_files_below(path))
            return _stamp(held) if held else None
        return _stamp([("", path.lstat())])
    except OSError:
        return None


def is_own_output(candidate: Candidate) -> bool:
    """Whether FlowCheck wrote it: it is equal to the replica because it is made from it."""
    return manifest_path(candidate.path).is_file()


def is_other_file(candidate: Candidate) -> bool:
    """Whether it is a file of another kind, such as a log beside the checkpoints."""
    if candidate.folder or candidate.path.suffix.lower() in CHECKPOINT_SUFFIXES:
        return False
    try:
        return checkpoint_kind(beginning(candidate.path)) is None
    except OSError:
        return False


def unfinished_reason(candidate: Candidate, still_s: float = math.inf) -> Finding | None:
    """Why a checkpoint that stands still is not complete; None: nothing says that it is not.
    still_s: seconds for which it has not changed. Raises OSError."""
    if candidate.folder:
        return missing_in_folder(candidate.path, still_s)
    return missing_in_file(candidate.path)


def file_error_of(error: FlowCheckError | OSError, file: Path) -> Finding:
    """What came of reading a candidate at `file`, for its line."""
    if isinstance(error, FlowCheckError):
        return error.finding
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        path = Path(os.fsdecode(error.filename))
        if path == file or file in path.parents:
            return VANISHED()
    return ERROR_TEXT(kind=type(error).__name__, text=str(error))
