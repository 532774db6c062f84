"""Folders that root has for a chain, made the chain's user's."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from flowcheck.plane.memory import huge_mounts, own_folder
from flowcheck.stages.chain.living import PREFIX
from flowcheck.stages.privilege.account import CACHE, Account
from flowcheck.stages.privilege.reach import Need, Use, as_if
from flowcheck.stages.strangers import is_run

OF_CHECKPOINTS = re.compile(r"\.?step-.*|job-\d+|jobs\.json|latest")
"""Names that a chain itself gives in a folder of checkpoints."""


def run_folder(root: Path, account: Account) -> list[Need]:
    """A run directory, with the shared memory of a killed chain in it. It is made where it is not
    there. What belongs to somebody, and is no run, stays whose it is."""
    _give(root, account, lambda: is_run(root) or _names(root) <= {"learned"})
    for link in (root / "memory", *root.glob("jobs/*/memory")):
        memory = link.resolve()
        ours = link.is_symlink() and memory.name.startswith(PREFIX) and memory.is_dir()
        if ours and memory.stat().st_uid == 0:
            _all_below(memory, account)
    return [Need(root.absolute(), Use.OWN)]


def output_folder(folder: Path, account: Account) -> list[Need]:
    """A folder for checkpoints, as above."""
    _give(folder, account, lambda: all(OF_CHECKPOINTS.fullmatch(n) for n in _names(folder)))
    return [Need(folder.absolute(), Use.OWN)]


def private_folders(account: Account) -> None:
    """A home for caches, and room in each mount of 2 MiB pages."""
    if account.home.parent == CACHE and CACHE.is_dir():
        _give(account.home, account, lambda: False)
    for mount in huge_mounts():
        _give(own_folder(mount, account.user), account, lambda: False)


def _give(folder: Path, account: Account, is_ours: Callable[[], bool]) -> None:
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        os.chown(folder, account.user, account.group)
        return
    found = folder.stat()
    mine_alone = found.st_uid == 0 and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    with as_if(account):
        can_write = os.access(f"{folder}/.", os.W_OK, effective_ids=True)
    if mine_alone and not can_write and (not _names(folder) or is_ours()):
        _all_below(folder, account)


def _all_below(folder: Path, account: Account) -> None:
    """Only of a folder where nobody but root could put anything: a link to a file elsewhere would
    be that file's."""
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = f"{where}/{name}"
            found = os.lstat(path)
            if found.st_uid == 0 and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1):
                os.chown(path, account.user, account.group, follow_symlinks=False)
    os.chown(folder, account.user, account.group)


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
