"""Changes the owner of run, output and cache folders from root to the chain's user."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from flowcheck.plane.shared_memory.hugepage_memory import hugetlbfs_mounts, user_folder
from flowcheck.private_files import OTHERS_WRITE, PRIVATE_FOLDER_MODE
from flowcheck.stages.privilege.mount_namespace import PathNeed, PathUse, acting_as
from flowcheck.stages.run_directory.process_liveness import MEMORY_PREFIX, run_dir_of_memory
from flowcheck.stages.run_directory.run_dir_checks import is_run
from flowcheck.stages.run_directory.service_account import CACHE, Account

OF_CHECKPOINTS = re.compile(r"\.?step-.*|job-\d+|jobs\.json|latest")
"""Names that a chain itself gives in a folder of checkpoints."""


def run_folder(root: Path, account: Account) -> list[PathNeed]:
    """A run directory, with the shared memory of a killed chain in it. It is made where it is not
    there. What belongs to somebody, and is no run, stays whose it is."""
    _give(root, account, lambda: is_run(root) or _names(root) <= {"learned"})
    for run in (root, *root.glob("jobs/*")):
        memory = (run / "memory").resolve()
        if (run / "memory").is_symlink() and _is_memory_of(run, memory):
            _all_below(memory, account)
    return [PathNeed(root.absolute(), PathUse.OWN)]


def _is_memory_of(run: Path, memory: Path) -> bool:
    """Root made it for this run. The link alone says nothing: whoever owns the run directory may
    have put it there, and it may lead to any folder of root's."""
    named = memory.name.startswith(MEMORY_PREFIX) and memory.is_dir()
    return named and _is_lead_to(memory) and run_dir_of_memory(memory) == run.resolve()


def output_folder(folder: Path, account: Account) -> list[PathNeed]:
    """A folder for checkpoints, as above."""
    _give(folder, account, lambda: all(OF_CHECKPOINTS.fullmatch(n) for n in _names(folder)))
    return [PathNeed(folder.absolute(), PathUse.OWN)]


def private_folders(account: Account) -> None:
    """A home for caches, and room in each mount of 2 MiB pages."""
    if account.home.parent == CACHE and CACHE.is_dir():
        _give(account.home, account, lambda: False)
    for mount in hugetlbfs_mounts():
        _give(user_folder(mount, account.user), account, lambda: False)


def _give(folder: Path, account: Account, is_ours: Callable[[], bool]) -> None:
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=PRIVATE_FOLDER_MODE)
        return _all_below(folder, account)
    found = folder.stat()
    mine_alone = _is_roots_alone(found)
    with acting_as(account):
        can_write = os.access(f"{folder}/.", os.W_OK, effective_ids=True)
    if mine_alone and not can_write and _is_lead_to(folder) and (not _names(folder) or is_ours()):
        _all_below(folder.resolve(), account)


def _is_lead_to(folder: Path) -> bool:
    """Root alone says what lies at this path: nobody else may put a link, or another folder of
    root's, in place of any part of it."""
    ways = {*folder.absolute().parents, *folder.resolve().parents}
    return all(_is_roots(way.lstat()) for way in ways) and folder.lstat().st_uid == 0


def _is_roots(found: os.stat_result) -> bool:
    """Nobody else may take out of it what is root's."""
    shared = found.st_mode & OTHERS_WRITE and not found.st_mode & stat.S_ISVTX
    return found.st_uid == 0 and (stat.S_ISLNK(found.st_mode) or not shared)


def _all_below(folder: Path, account: Account) -> None:
    """Only of a folder where nobody but root could put anything: a link to a file elsewhere would
    be that file's. From below: what has been handed over is not looked into any more, as its new
    owner may put anything there at once."""
    for _, folders, files, held in os.fwalk(folder, topdown=False):
        if not _is_roots_alone(os.fstat(held)):
            continue
        for name in (*folders, *files):
            found = os.stat(name, dir_fd=held, follow_symlinks=False)
            if found.st_uid == 0 and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1):
                os.chown(name, account.user, account.group, dir_fd=held, follow_symlinks=False)
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if _is_roots_alone(os.fstat(held)):
            os.fchown(held, account.user, account.group)
    finally:
        os.close(held)


def _is_roots_alone(found: os.stat_result) -> bool:
    return found.st_uid == 0 and not found.st_mode & OTHERS_WRITE


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
