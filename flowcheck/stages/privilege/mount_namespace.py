"""A mount namespace in which the chain's user can access named paths in private folders, such as
root's home.

No folder's permissions are changed. In the command's own mount namespace a private folder is
replaced by one that contains only the named paths.

For later commands the named paths are stored in a folder that only root can write to, not in the
run directory: the chain's user, who owns the run directory, could name any file there.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog.privileges import (
    NEED,
    NO_ACCESS,
    NO_ACCESS_SHOWN,
    NO_SCRATCH_FOLDER,
    TOO_MANY_FILES,
)
from flowcheck.findings.finding import Finding
from flowcheck.stages.privilege import privilege_syscalls
from flowcheck.stages.run_directory.service_account import CACHE, Account

COPY_MAX_BYTES = 16 << 20
"""Most bytes of a file that is copied because the user may not read it by its mode: a token, a key,
a script, a job file. A choice: copies lie in memory."""
ENTRIES_MAX = 1024
"""Most files and folders that are made visible. A choice: each holds a descriptor open, of which a
process has 1,024 by default."""
SCRATCHES = tuple(map(Path, ("/mnt", "/media", "/srv", "/opt")))
"""Folders that may be hidden for a moment to hold copies, if no named path lies in them. Every
system has them (Filesystem Hierarchy Standard)."""
TEMPORARY = tuple(map(Path, ("/run", "/tmp", "/var/tmp")))
"""Folders in which a temporary folder for copies is created if none of SCRATCHES can be used."""
FLAGS = privilege_syscalls.MS_NOSUID | privilege_syscalls.MS_NODEV
SKELETON = "mode=0755,size=64m"
VIEW_UMASK = 0o022
"""The umask for folders in the view, which the user must be able to enter."""
MNT_DETACH = 2
"""Flag of umount2(2), from linux/mount.h."""


class PathUse(StrEnum):
    """What a path is needed for."""

    FILE = "read"
    FOLDER = "read, and all below it"
    CODE = "import Python files from it"
    OWN = "write in it"
    PLACE = "be in it"


USE_IN_WORDS = {
    PathUse.FILE: "read",
    PathUse.FOLDER: "read all files below",
    PathUse.CODE: "import Python files from",
    PathUse.OWN: "write in",
    PathUse.PLACE: "enter",
}
"""How a sentence has it, before the path; the values of PathUse are stored in run directories."""


@dataclass(frozen=True, slots=True, order=True)
class PathNeed:
    """An existing path, and what it is needed for."""

    path: Path
    use: PathUse

    @property
    def finding(self) -> Finding:
        return NEED(use=USE_IN_WORDS[self.use], path=self.path)


@contextmanager
def acting_as(account: Account) -> Iterator[None]:
    """Within the `with`, os.access(..., effective_ids=True) answers for the account. Only for a
    process with one thread."""
    if os.geteuid() != 0:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    os.setgroups(account.groups)
    os.setegid(account.group)
    os.seteuid(account.user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def inaccessible_needs(account: Account, needs: Iterable[PathNeed]) -> list[PathNeed]:
    """The needs for which the account does not have access."""
    with acting_as(account):
        return [need for need in needs if not _granted(need.path, need.use)]


def _granted(path: Path, use: PathUse) -> bool:
    wanted = {PathUse.FILE: os.R_OK, PathUse.OWN: os.W_OK | os.X_OK, PathUse.PLACE: os.X_OK}
    return os.access(path, wanted.get(use, os.R_OK | os.X_OK), effective_ids=True)


def expose_paths(account: Account, needs: Sequence[PathNeed]) -> None:
    """Makes all `needs` accessible to the account, in a mount namespace of this process and its
    children. Raises StateError, and leaves the namespace as before, if that is not possible."""
    missing, here = inaccessible_needs(account, needs), Path.cwd()
    if not missing:
        return
    home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    failed: Exception | None = None
    mask = os.umask(VIEW_UMASK)
    try:
        _View(account).build(missing)
        os.chdir(here)
        missing = inaccessible_needs(account, needs)
    except (OSError, StateError) as error:
        failed = error
    try:
        os.umask(mask)
        if missing:
            privilege_syscalls.enter_mounts(home)
            os.chdir(here)
            named = {"user": account.words, "needs": [need.finding for need in missing[:4]]}
            raise StateError(
                NO_ACCESS(**named) if failed is None else NO_ACCESS_SHOWN(**named, error=failed)
            )
    finally:
        os.close(home)


class _View:
    """Builds the view, once: opens all paths, replaces private folders, and mounts the opened paths
    in them."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._opened: dict[Path, tuple[int, PathUse]] = {}
        """{absolute path: (descriptor of what is there, what it is needed for)}"""

    def build(self, missing: Sequence[PathNeed]) -> None:
        privilege_syscalls.own_mounts()
        with ExitStack() as files:  # of these mounts: no other's can be bound
            for need in missing:
                for path in {need.path.absolute(), need.path.resolve()}:
                    self._open(path, need.use, files)
            closed, scratch, order = self._closed(), self._scratch(files), self._order()
            for folder in (scratch, *closed):
                privilege_syscalls.mount("tmpfs", str(folder), "tmpfs", FLAGS, SKELETON)
            for number, (path, real) in enumerate(order):
                if path != real and real in self._opened and path.resolve() == real:
                    continue  # its links are still there
                descriptor, use = self._opened[path]
                if use is PathUse.PLACE:
                    path.mkdir(parents=True, exist_ok=True)
                else:
                    self._place(path, descriptor, scratch / str(number))
            privilege_syscalls.unmount(str(scratch), MNT_DETACH)
            for folder in closed:
                flags = FLAGS | privilege_syscalls.MS_REMOUNT | privilege_syscalls.MS_RDONLY
                privilege_syscalls.mount("tmpfs", str(folder), "tmpfs", flags)

    def _open(self, path: Path, use: PathUse, files: ExitStack) -> None:
        if path in self._opened and use is not PathUse.OWN:
            return
        if len(self._opened) >= ENTRIES_MAX:
            raise StateError(TOO_MANY_FILES(path.parent))
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        files.callback(os.close, descriptor)
        if use is not PathUse.CODE or self._allows(descriptor, os.R_OK | os.X_OK):
            self._opened[path] = (descriptor, use)
            return
        self._opened[path] = (descriptor, PathUse.PLACE)
        for entry in sorted(_code_in(path)):
            with suppress(OSError):  # a link that leads nowhere
                self._open(entry, PathUse.CODE if entry.is_dir() else PathUse.FILE, files)

    def _closed(self) -> list[Path]:
        """The outermost folders on the way to the opened paths that the account cannot enter."""
        found: set[Path] = set()
        with acting_as(self._account):
            for path, (_, use) in self._opened.items():
                way = [*reversed(path.parents), *[path] * (use is PathUse.PLACE)]
                shut = (w for w in way if not os.access(w, os.X_OK, effective_ids=True))
                found.update(itertools.islice(shut, 1))
        real = {folder.resolve() for folder in found}
        return sorted(folder for folder in real if real.isdisjoint(folder.parents))

    def _order(self) -> list[tuple[Path, Path]]:
        """(opened path, the path it resolves to), the targets of links first: in a replaced folder
        a link leads nowhere until its target is mounted."""
        led = [(path, path.resolve()) for path in self._opened]
        return sorted(led, key=lambda one: (one[0] != one[1], one[0]))

    def _scratch(self, files: ExitStack) -> Path:
        for folder in SCRATCHES:
            if folder.is_dir() and not any(p.is_relative_to(folder) for p in self._opened):
                return folder
        for folder in TEMPORARY:  # gone again when the view stands
            with suppress(OSError):
                made = Path(tempfile.mkdtemp(prefix=".flowcheck-", dir=folder))
                files.callback(_remove, made)
                return made
        raise StateError(NO_SCRATCH_FOLDER(list(map(str, (*SCRATCHES, *TEMPORARY)))))

    def _allows(self, descriptor: int, wanted: int) -> bool:
        """Whether the mode of an open file allows the account this access, whatever folders lead to
        it."""
        with acting_as(self._account):
            return os.access(f"/proc/self/fd/{descriptor}", wanted, effective_ids=True)

    def _place(self, path: Path, descriptor: int, copy: Path) -> None:
        what, found = Path(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.touch()
            if not self._allows(descriptor, os.R_OK) and found.st_size <= COPY_MAX_BYTES:
                copy.touch(mode=0o400)
                copy.write_bytes(what.read_bytes())
                os.chown(copy, self._account.user, self._account.group)
                what = copy
        privilege_syscalls.mount(
            str(what), str(path), None, privilege_syscalls.MS_BIND | privilege_syscalls.MS_REC
        )


def _remove(folder: Path) -> None:
    with suppress(OSError):  # a system that went read-only meanwhile
        folder.rmdir()


def _code_in(folder: Path) -> Iterator[Path]:
    """The Python files and packages in a folder. Nothing else of a private folder with code is made
    visible."""
    for entry in folder.iterdir():
        is_package = entry.is_dir() and entry.name[0] != "." and any(entry.glob("*.py"))
        if is_package or (entry.suffix in (".py", ".so") and entry.is_file()):
            yield entry


FOLDER = CACHE / "flowcheck-shown"


class _Shown(msgspec.Struct, frozen=True):
    path: str
    use: PathUse


def remember_shown_paths(run: Path, needs: Sequence[PathNeed]) -> None:
    """Stores the needs of the chain that root starts in `run`, for later commands. Errors are
    ignored, so that the chain starts in any case."""
    with suppress(OSError):
        FOLDER.mkdir(mode=0o700, exist_ok=True)
        own = _file(run)
        own.write_bytes(msgspec.json.encode([_Shown(str(n.path), n.use) for n in needs]))


def remembered_paths(run: Path) -> list[PathNeed]:
    """The stored needs of the chain in `run` whose paths still exist."""
    with suppress(OSError, *DECODE_ERRORS):
        told = msgspec.json.decode(_file(run).read_bytes(), type=list[_Shown])
        return [PathNeed(Path(one.path), one.use) for one in told if os.path.lexists(one.path)]
    return []


def _file(run: Path) -> Path:
    return FOLDER / hashlib.sha256(os.fsencode(run.resolve())).hexdigest()
