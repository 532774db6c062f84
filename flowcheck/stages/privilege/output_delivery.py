"""Output that the chain's user writes and root moves to its place.

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
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.findings.catalog.privileges import OUTPUT_NOT_WRITTEN, TOO_MANY_FILES
from flowcheck.stages.privilege import privilege_syscalls
from flowcheck.stages.privilege.mount_namespace import ENTRIES_MAX
from flowcheck.stages.run_directory.service_account import Account

BEGIN = b"<svg"
"""Of every picture that is drawn here."""


def is_picture(path: Path) -> bool:
    """Whether a file is one, or holds nothing yet."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(BEGIN)) in (b"", BEGIN)
    return False


@dataclass(frozen=True, slots=True)
class OutputDelivery:
    """Of one result."""

    output_folder: Path
    staging_folder: Path
    """The folder that is written in, beside it."""
    force: bool
    """It takes the place of an output of ours."""

    @property
    def _names(self) -> tuple[str, str]:
        """Of what is put in its place: the manifest of a file lies beside it."""
        from flowcheck.replica.checkpoint_files.manifest import manifest_beside

        return self.output_folder.name, manifest_beside(self.output_folder).name

    @classmethod
    def make(cls, who: Account, out: Path, *, force: bool) -> OutputDelivery:
        """Raises OSError, which names `out`, where root cannot write there either."""
        folder = out.absolute().parent
        try:
            own = Path(tempfile.mkdtemp(prefix=".flowcheck-", dir=folder))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(out)) from error
        os.chown(own, who.user, who.group)
        return cls(out.absolute(), own, force)

    def take_place(self) -> None:
        """In the process that writes, in mounts of its own: its folder stands for the named one,
        with what was seen there. Raises StateError where that is too much."""
        with ExitStack() as files:
            folder = _opened(self.staging_folder, files)
            seen = {e.name: _opened(e, files) for e in self._shown()}
            if len(seen) > ENTRIES_MAX:
                raise StateError(TOO_MANY_FILES(self.output_folder.parent))
            privilege_syscalls.mount(
                folder,
                str(self.output_folder.parent),
                None,
                privilege_syscalls.MS_BIND | privilege_syscalls.MS_REC,
            )
            for name, what in seen.items():
                place = self.output_folder.parent / name
                place.mkdir() if Path(what).is_dir() else place.touch()
                privilege_syscalls.mount(
                    what, str(place), None, privilege_syscalls.MS_BIND | privilege_syscalls.MS_REC
                )

    def _shown(self) -> Iterator[Path]:
        """What is to be replaced is not: a mount cannot be. Root looks at that itself."""
        replaced = self._names if self.force else ()
        for entry in self.output_folder.parent.iterdir():
            if entry != self.staging_folder and entry.name not in replaced and entry.exists():
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
            shutil.rmtree(self.staging_folder, ignore_errors=True)
        return code if code >= 0 else 128 - code

    def _deliver(self) -> None:
        """Raises ConfigError where something lies there by now whose place it may not take."""
        from flowcheck.vault.overwrite_guard import OutputTarget, by_either

        written = [
            self.staging_folder / name
            for name in self._names
            if os.path.lexists(self.staging_folder / name)
        ]
        if not written and os.path.lexists(self.output_folder):
            return  # a writer that had to keep root's rights, as it told
        if self.staging_folder / self.output_folder.name not in written or any(
            path.is_symlink() for path in written
        ):
            raise StateError(OUTPUT_NOT_WRITTEN(self.output_folder))
        for entry in written:
            _make_roots(entry)
        folder = written[0].is_dir()
        own = OutputTarget(
            path=self.output_folder, folder=folder, force=self.force, listed=by_either
        )
        with own.replacing() as make_room:
            make_room()
            for entry in written:
                entry.rename(self.output_folder.parent / entry.name)


def _make_roots(entry: Path) -> None:
    below = [Path(at) / n for at, *names in os.walk(entry) for part in names for n in part]
    for path in (entry, *below):
        os.chown(path, 0, 0, follow_symlinks=False)


def _opened(path: Path, files: ExitStack) -> str:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    files.callback(os.close, descriptor)
    return f"/proc/self/fd/{descriptor}"


def fork_writer(outbox: OutputDelivery) -> None:
    """Returns in a process that is to write; this one waits for it and ends with its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    if (writer := os.fork()) != 0:
        os._exit(outbox.delivered(writer))
