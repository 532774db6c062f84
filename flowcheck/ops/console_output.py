"""Console output of commands: one line that cannot contain markup or terminal escapes, and a
progress bar for bytes written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from flowcheck.untrusted_text import printable

__all__ = ["print_line", "printable"]


def print_line(told: str) -> None:
    """One line, as long as it is."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(printable(told), markup=False)


LOOK_S = 0.1
"""Seconds between two looks at the growing file. A choice: shorter costs processor time."""


@contextmanager
def write_progress_bar(what: str, total_bytes: int) -> Iterator[Progress]:
    """A bar on stderr with its rate; nothing is shown where that is no terminal. Its one task is
    number 0."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(file=sys.stderr)
    shown = Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True)
    shown.add_task(what, total=max(total_bytes, 1))
    with shown:
        yield shown


@contextmanager
def file_growth_bar(path: Path, total_bytes: int) -> Iterator[None]:
    """A bar for an output that grows beside `path`, under a name of its own until it is whole."""
    done = Event()

    def look(shown: Progress) -> None:
        while not done.wait(LOOK_S):
            shown.update(shown.task_ids[0], completed=min(_temporary_file_bytes(path), total_bytes))

    with write_progress_bar(path.name, total_bytes) as shown:
        watcher = Thread(target=look, args=(shown,), daemon=True)
        if not shown.disable:
            watcher.start()
        try:
            yield
        finally:
            done.set()
            if watcher.is_alive():
                watcher.join()


def _temporary_file_bytes(path: Path) -> int:
    held = 0
    for place in path.parent.glob(f".{path.name}.*.tmp"):
        for file in place.rglob("*") if place.is_dir() else (place,):
            with suppress(OSError):
                held += file.stat().st_size
    return held
