"""A command that runs as the chain's user and whose result goes where only root may write.

It writes in a folder of its own, which it sees in the place of the one that was named. Root waits,
and puts what it finds there in its place, as files of root's.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.stages.privilege import kernel
from flowcheck.stages.privilege.account import Account
from flowcheck.stages.privilege.reach import ENTRIES_MAX


@dataclass(frozen=True, slots=True)
class Outbox:
    """Of one result."""

    out: Path
    own: Path
    """The folder that is written in, beside it."""
    before: frozenset[str]
    """What lay beside it."""
    force: bool

    @classmethod
    def make(cls, who: Account, out: Path, *, force: bool) -> Outbox:
        """Raises OSError where root cannot write there either."""
        folder = out.absolute().parent
        folder.mkdir(parents=True, exist_ok=True)
        before = frozenset(entry.name for entry in folder.iterdir())
        own = Path(tempfile.mkdtemp(prefix=".flowcheck-", dir=folder))
        os.chown(own, who.user, who.group)
        return cls(out.absolute(), own, before, force)

    def take_place(self) -> None:
        """In the process that writes, in mounts of its own: its folder stands for the named one,
        with what was seen there. Raises StateError where that is too much."""
        with ExitStack() as files:
            folder = _opened(self.own, files)
            seen = {e.name: _opened(e, files) for e in self._shown()}
            if len(seen) > ENTRIES_MAX:
                raise StateError(f"{self.out.parent} holds too many files to be shown")
            kernel.mount(folder, str(self.out.parent), None, kernel.MS_BIND | kernel.MS_REC)
            for name, what in seen.items():
                place = self.out.parent / name
                place.mkdir() if Path(what).is_dir() else place.touch()
                kernel.mount(what, str(place), None, kernel.MS_BIND | kernel.MS_REC)

    def _shown(self) -> Iterator[Path]:
        """What is to be replaced is not: a mount cannot be."""
        replaced = self.out.name if self.force else None
        for entry in self.out.parent.iterdir():
            if entry != self.own and entry.name != replaced and entry.exists():
                yield entry

    def delivered(self, writer: int) -> int:
        """Waits for the process that writes; its exit code."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a whole terminal; the writer has it too
        signal.signal(signal.SIGTERM, lambda number, _: os.kill(writer, number))
        try:
            code = os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1])
            if code == 0:
                self._deliver()
        finally:
            shutil.rmtree(self.own, ignore_errors=True)
        return code if code >= 0 else 128 - code

    def _deliver(self) -> None:
        for entry in self.own.iterdir():
            if entry.name in self.before and not (self.force and entry.name == self.out.name):
                continue
            below = [
                Path(where) / n for where, *names in os.walk(entry) for part in names for n in part
            ]
            for path in (entry, *below):
                os.chown(path, 0, 0, follow_symlinks=False)
            target = self.out.parent / entry.name
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            entry.rename(target)


def _opened(path: Path, files: ExitStack) -> str:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    files.callback(os.close, descriptor)
    return f"/proc/self/fd/{descriptor}"


def send(outbox: Outbox) -> None:
    """Returns in a process that is to write; this one waits for it and ends with its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    if (writer := os.fork()) != 0:
        os._exit(outbox.delivered(writer))
