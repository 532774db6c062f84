"""Changes the owner of run, output and cache folders from root to the chain's user."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from flowcheck.plane.shared_memory.shared_memory_location import hugetlbfs_mounts, user_folder
from flowcheck.private_files import OTHERS_WRITE, PRIVATE_FOLDER_MODE
from flowcheck.stages.privilege.mount_namespace import PathNeed, PathUse, acting_as
from flowcheck.stages.run_directory.process_liveness import MEMORY_PREFIX, run_dir_of_memory
from flowcheck.stages.run_directory.run_dir_checks import is_run
from flowcheck.stages.run_directory.service_account import CACHE, Account

OF_CHECKPOINTS = re.compile(r"\.?step-.*|job-\d+|jobs\.json|latest")
"""Names that a chain creates in a folder of checkpoints."""


def hand_over_run_folder(root: Path, account: Account) -> list[PathNeed]:
    """Creates the run directory, or gives it to the account together with the shared memory of a
    killed chain. A folder that belongs to another user, or is no run directory, keeps its owner.
    Returns the need to write in it."""
    _give(root, account, lambda: is_run(root) or _names(root) <= {"learned"})
    for run in (root, *root.glob("jobs/*")):
        memory = (run / "memory").resolve()
        if (run / "memory").is_symlink() and _is_memory_of(run, memory):
            _all_below(memory, account)
    return [PathNeed(root.absolute(), PathUse.OWN)]


def _is_memory_of(run: Path, memory: Path) -> bool:
    """Whether root created this shared memory for this run. The link in the run directory is no
    proof: the owner of the run directory may have made it lead to any folder of root's."""
    named = memory.name.startswith(MEMORY_PREFIX) and memory.is_dir()
    return named and _is_lead_to(memory) and run_dir_of_memory(memory) == run.resolve()


def hand_over_output_folder(folder: Path, account: Account) -> list[PathNeed]:
    """Creates a folder for checkpoints, or gives it to the account if it holds nothing but
    checkpoints. Returns the need to write in it."""
    _give(folder, account, lambda: all(OF_CHECKPOINTS.fullmatch(n) for n in _names(folder)))
    return [PathNeed(folder.absolute(), PathUse.OWN)]


def create_private_folders(account: Account) -> None:
    """Creates the account's folder for caches, and its folder in each mount of 2 MiB pages."""
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
    if not stat.S_ISDIR(found.st_mode):
        return  # which whoever writes there is told
    mine_alone = _is_roots_alone(found)
    with acting_as(account):
        can_write = os.access(f"{folder}/.", os.W_OK, effective_ids=True)
    if mine_alone and not can_write and _is_lead_to(folder) and (not _names(folder) or is_ours()):
        _all_below(folder.resolve(), account)


def _is_lead_to(folder: Path) -> bool:
    """Whether only root can change what is at this path: no other user may replace any part of the
    path by a link or another folder."""
    ways = {*folder.absolute().parents, *folder.resolve().parents}
    return all(_is_roots(way.lstat()) for way in ways) and folder.lstat().st_uid == 0


def _is_roots(found: os.stat_result) -> bool:
    """Whether a folder is root's, and no other user may remove or rename root's files in it."""
    shared = found.st_mode & OTHERS_WRITE and not found.st_mode & stat.S_ISVTX
    return found.st_uid == 0 and (stat.S_ISLNK(found.st_mode) or not shared)


def _all_below(folder: Path, account: Account) -> None:
    """Gives everything below `folder`, and the folder itself, to the account.

    Changes only folders where no user but root could create anything: a hard link created there by
    another user could be to any file. Works from the leaves up, so that a folder is not read after
    its new owner may have changed it.
    """
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
