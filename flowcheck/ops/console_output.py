"""Console output of commands: a console that keeps commands whole where it wraps, one line that
cannot contain markup or terminal escapes, and a progress bar for bytes written."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from flowcheck.findings.finding import Finding
from flowcheck.untrusted_text import printable

__all__ = ["SentenceConsole", "print_line", "printable"]

WORD = re.compile(r"\s*(?:`[^`\n]+`|\S)+\s*")
"""A word with the spaces around it; a command between backticks is one word."""


class SentenceConsole(Console):
    """Wraps text between words and around commands: what stands between backticks stays on one
    line, longer than the console is wide if it must, so that it can be pasted into a shell."""

    def print(self, *objects: Any, indent: int = 0, **options: Any) -> None:
        """As rich has it. indent: cells before the second line of a text and those below it."""
        first = objects[0] if len(objects) == 1 else None
        if not isinstance(first, str) or options.get("soft_wrap") or self.soft_wrap:
            super().print(*objects, **options)
            return
        text = self.render_str(
            first, markup=options.pop("markup", None), highlight=options.pop("highlight", None)
        )
        for line in wrapped_around_commands(text, self.width, indent):
            super().print(line, soft_wrap=True, **options)

    def print_finding(self, finding: Finding, before: str = "") -> None:
        """Its sentence, and in a line below it what to do. before: markup that begins the first
        line."""
        self.print(f"{before}{escape(printable(str(finding)))}", markup=True)
        if finding.remedy:
            remedy = f"  [dim]{escape(printable(finding.remedy))}[/]"
            self.print(remedy, markup=True, highlight=False)


def wrapped_around_commands(text: Text, width: int, indent: int = 0) -> Iterator[Text]:
    """The lines of a text, at most `width` cells each unless one word is longer; a command between
    backticks is one word. indent: cells before the second line and those below it."""
    begin = Text(" " * indent)
    for paragraph in text.split(allow_blank=True):
        breaks, column = list[int](), 0
        for word in WORD.finditer(paragraph.plain):
            if column + cell_len(word[0].rstrip()) > width and word.start():
                breaks.append(word.start())
                column = indent
            column += cell_len(word[0])
        for number, line in enumerate(paragraph.divide(breaks)):
            line.rstrip()
            yield begin + line if number else line


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
