"""Downloads a checkpoint from a URL into a local folder, verified, while a command uses it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_restores import NO_OWN_FOLDER, OTHER_STATE
from flowcheck.findings.finding import Finding
from flowcheck.ops.console_output import write_progress_bar
from flowcheck.ops.json_option import asks_for_json
from flowcheck.ops.restore.restore_request import StepSource
from flowcheck.replica.checkpoint_files.latest_pointer import LATEST
from flowcheck.step_numbers import Step
from flowcheck.vault.download.checkpoint_download import download_step
from flowcheck.vault.download.download_source import NEWEST
from flowcheck.vault.persist.checkpoint_listing import read_listing
from flowcheck.vault.serve.step_server import read_token


def is_url(where: object) -> bool:
    """Whether `where` is a URL, not a path."""
    return isinstance(where, str) and "://" in where


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A checkpoint that was at a URL."""

    folder: Path
    doubts: tuple[Finding, ...]
    """What came to light behind its save, as the server says."""


@contextmanager
def checkpoint_of(source: StepSource, download_beside: Path | None = None) -> Iterator[Downloaded]:
    """Downloads and verifies the checkpoint at a URL, and yields it; its folder is deleted at the
    end of the `with`.

    download_beside: the output made from the checkpoint; the download is on the same disk. None: it
    is in a temporary folder of this user. After an error the download stays, and the next call
    continues it. Raises ConfigError and StateError as `download_step` does.
    """
    url, file = source.url, source.token_file
    assert url is not None
    token = read_token(str(file)).decode() if file is not None else None
    name = f".flowcheck-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    folder = (
        download_beside.absolute().parent if download_beside is not None else _own_temporary()
    ) / name
    try:
        with write_progress_bar(url, 1) as shown:

            def moved(done: int, total: int) -> None:
                shown.update(shown.task_ids[0], completed=done, total=max(total, 1))

            def print_line(told: str) -> None:
                if not asks_for_json():  # stderr has the error's JSON object, and nothing else
                    shown.console.print(told, markup=False, highlight=False, soft_wrap=True)

            which: Step | str = NEWEST if source.allow_tainted else LATEST
            if source.step is not None:
                which = source.step
            by = None if source.authority is None else str(source.authority)
            doubts: list[Finding] = []
            there = download_step(
                url,
                which,
                folder,
                token,
                authority=by,
                moved=moved,
                said=print_line,
                doubted=doubts.extend,
            )
            if source.digest is not None and read_listing(there).digest != source.digest:
                shutil.rmtree(folder, ignore_errors=True)
                raise StateError(OTHER_STATE(url=url, step=source.step))
            yield Downloaded(there, tuple(doubts))
    except ConfigError:
        if not folder.exists() or not any(folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _own_temporary() -> Path:
    """A temporary folder of this user, the same in each call, that no other user can access. Raises
    StateError if another user created it."""
    folder = Path(tempfile.gettempdir()) / f"flowcheck-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise StateError(NO_OWN_FOLDER(folder))
    return folder
