"""Output that the chain's user writes and root moves to its place.

The user's process writes to a staging folder, which it sees in place of the named folder. Root's
process waits, and moves the output from the staging folder to the named one, with root as owner,
or with the owner of the earlier output that it replaces.
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

SVG_START = b"<svg"
"""First bytes of every picture that FlowCheck draws."""
CLOSED_PIPE = 1
"""Exit code of a command whose reader closed the pipe (rich/console.py, on_broken_pipe;
click/core.py, main). An output has its name by then: it is written first, and told afterwards."""


def is_picture(path: Path) -> bool:
    """Whether a file is a picture of FlowCheck, or empty."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(SVG_START)) in (b"", SVG_START)
    return False


@dataclass(frozen=True, slots=True)
class OutputDelivery:
    """The delivery of one output."""

    output_folder: Path
    """Final path of the output, a folder or a file."""
    staging_folder: Path
    """Folder beside it to which the user's process writes."""
    force: bool
    """True: the output may replace an earlier output of FlowCheck."""
    held: int
    """Descriptor of `staging_folder`: where the user may write beside the output, a path may lead
    elsewhere by now."""

    @property
    def _names(self) -> tuple[str, str]:
        """Names of the files to move: the output, and the manifest beside a one-file output."""
        from flowcheck.replica.checkpoint_files.manifest import manifest_beside

        return self.output_folder.name, manifest_beside(self.output_folder).name

    @classmethod
    def make(cls, who: Account, out: Path, *, force: bool) -> OutputDelivery:
        """Creates the staging folder for the output `out`, which `who` writes. Raises OSError that
        names `out` if root cannot write there."""
        folder = out.absolute().parent
        try:
            own = Path(tempfile.mkdtemp(prefix=".flowcheck-", dir=folder))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(out)) from error
        held = os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.fchown(held, who.user, who.group)
        return cls(out.absolute(), own, force, held)

    def take_place(self) -> None:
        """Called in the user's process, in its own mount namespace: mounts the staging folder in
        place of the named folder, with the files that are there. Raises StateError if there are
        more than ENTRIES_MAX, or the staging folder was replaced."""
        with ExitStack() as files:
            folder = _opened(self.staging_folder, files)
            if not os.path.samestat(Path(folder).stat(), os.fstat(self.held)):
                raise StateError(OUTPUT_NOT_WRITTEN(self.output_folder))
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
                made = Path(folder) / name
                made.mkdir() if Path(what).is_dir() else made.touch()
                place = str(self.output_folder.parent / name)
                privilege_syscalls.mount(
                    what, place, None, privilege_syscalls.MS_BIND | privilege_syscalls.MS_REC
                )

    def _shown(self) -> Iterator[Path]:
        """The entries of the named folder that the user's process sees. Entries to be replaced are
        left out, since a mount cannot be replaced; root checks them itself."""
        replaced = self._names if self.force else ()
        for entry in self.output_folder.parent.iterdir():
            if entry != self.staging_folder and entry.name not in replaced and entry.exists():
                yield entry

    def delivered(self, writer: int) -> int:
        """Waits for the user's process and moves its output if it wrote one, whether or not all
        that it told about it was read. Returns the exit code."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a whole terminal; the writer has it too
        signal.signal(signal.SIGTERM, lambda number, _: os.kill(writer, number))
        try:
            code = os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1])
            if code == 0 or (code == CLOSED_PIPE and self._written()):
                self._deliver()
        finally:
            shutil.rmtree(self.staging_folder, ignore_errors=True)
        return code if code >= 0 else 128 - code

    def _deliver(self) -> None:
        """Moves the output to its place. Raises ConfigError if the place now holds something that
        may not be replaced, StateError if the output is missing or a link."""
        from flowcheck.vault.overwrite_guard import OutputTarget, files_by_manifest_and_index
        from flowcheck.vault.replaced_owner import earlier_output

        written = self._written()
        if not written and os.path.lexists(self.output_folder):
            return  # a writer that had to keep root's rights, as it told
        if self.output_folder.name not in [path.name for path in written] or any(
            path.is_symlink() for path in written
        ):
            raise StateError(OUTPUT_NOT_WRITTEN(self.output_folder))
        for entry in written:
            _make_roots(entry)
        folder = written[0].is_dir()
        own = OutputTarget(
            path=self.output_folder,
            folder=folder,
            force=self.force,
            listed=files_by_manifest_and_index,
        )
        with own.replacing() as make_room:
            earlier = earlier_output(self.output_folder)
            make_room()
            for entry in written:
                if earlier is not None:
                    earlier.pass_on(entry)
                entry.rename(self.output_folder.parent / entry.name)

    def _written(self) -> list[Path]:
        """The files to move that are there."""
        paths = [Path(f"/proc/self/fd/{self.held}") / name for name in self._names]
        return [path for path in paths if os.path.lexists(path)]


def _make_roots(entry: Path) -> None:
    below = [Path(at) / n for at, *names in os.walk(entry) for part in names for n in part]
    for path in (entry, *below):
        os.chown(path, 0, 0, follow_symlinks=False)


def _opened(path: Path, files: ExitStack) -> str:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    files.callback(os.close, descriptor)
    return f"/proc/self/fd/{descriptor}"


def fork_writer(outbox: OutputDelivery) -> None:
    """Forks, and returns in the child, which writes. The parent waits for it, delivers the output
    and ends with its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    if (writer := os.fork()) != 0:
        os._exit(outbox.delivered(writer))
