"""Output folders of a lab run: new ones, or those of an earlier lab run, which may be replaced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_lab_options import (
    OUT_HAS_LIVE_RUN,
    OUT_HOLDS_RUN,
    OUT_IS_WORKING_FOLDER,
    OUT_NOT_A_FOLDER,
    OUT_NOT_OF_LAB,
    OUT_NOT_PLAIN,
)
from flowcheck.stages.run_directory.run_dir import RunDir

MARKER_FILE = ".flowcheck-lab"
"""File in each folder that a lab run made, created first. It marks the folder's contents as
replaceable."""
KEY = "--out"


def check_folders(folder: Path, own: tuple[Path, ...], *, force: bool) -> None:
    """Checks the output folders before anything is created. own: folders that the run creates
    inside `folder`; force: contents of earlier lab runs may be removed. Raises ConfigError naming
    what is in the way."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise ConfigError(KEY, str(folder), OUT_NOT_A_FOLDER())
    for each in own:
        if not os.path.lexists(each):
            continue
        if each.is_symlink() or not each.is_dir() or os.path.ismount(each):
            raise ConfigError(KEY, str(folder), OUT_NOT_PLAIN(each))
        if not is_ours(each):
            raise ConfigError(KEY, str(folder), OUT_NOT_OF_LAB(each))
        if not force:
            raise ConfigError(KEY, str(folder), OUT_HOLDS_RUN(each))
        if _is_within(Path.cwd(), each):
            raise ConfigError(KEY, str(folder), OUT_IS_WORKING_FOLDER(each))


def is_ours(folder: Path) -> bool:
    """Whether a lab run made the folder, or it is empty."""
    mark = folder / MARKER_FILE
    if next(folder.iterdir(), None) is None:
        return True
    return mark.is_file() and not mark.is_symlink()


def make_empty_folders(folder: Path, own: tuple[Path, ...], *, force: bool) -> None:
    """Creates each of `own` with only the mark in it. Raises ConfigError as `check_folders`, and
    if a chain runs in one of them."""
    check_folders(folder, own, force=force)
    for each in own:
        if pids := RunDir(each / "run").stage_pids():
            right = OUT_HAS_LIVE_RUN(pid=min(pids.values()), path=each)
            raise ConfigError(KEY, str(folder), right)
    for each in own:
        if each.exists():
            shutil.rmtree(each)
        each.mkdir(parents=True)
        (each / MARKER_FILE).touch()


def open_to_all(folder: Path) -> None:
    """Lets every user who reaches a folder of `make_empty_folders` read it, as on a shared disk:
    the chain's processes are not root."""
    folder.chmod(0o755)
    (folder / MARKER_FILE).chmod(0o644)


def _is_within(inner: Path, outer: Path) -> bool:
    return any(path.samefile(outer) for path in (inner, *inner.parents))
