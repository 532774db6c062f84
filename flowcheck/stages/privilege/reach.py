"""What of the file system a chain's user can reach, and a view of it in which that user reaches
what a command names although it lies in somebody's private folder, such as root's home.

Nobody's folder gets other rights. The view is a mount namespace of the command's own: a private
folder is replaced there by one that has nothing in it but what was named.
"""

from __future__ import annotations

import itertools
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.stages.privilege import kernel
from flowcheck.stages.privilege.account import Account

COPY_MAX_BYTES = 16 << 20
"""Of a file that the user may not read by its own mode: a word, a key, a script, a job file."""
ENTRIES_MAX = 1024
SCRATCHES = tuple(map(Path, ("/mnt", "/media", "/srv", "/opt")))
"""Every system has them (Filesystem Hierarchy Standard); one of which nothing is wanted is hidden
for a moment."""
TEMPORARY = tuple(map(Path, ("/run", "/tmp", "/var/tmp")))
"""Where a folder is made for it on systems that lack those, or want something of each."""
FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV
SKELETON = "mode=0755,size=64m"
PASSABLE = 0o022
"""The umask with which folders of the view are made: they lead to what the user is to reach."""
MNT_DETACH = 2
"""linux/mount.h"""


class Use(StrEnum):
    """What a path is wanted for."""

    FILE = "read"
    FOLDER = "read, and all below it"
    CODE = "import Python files from it"
    OWN = "write in it"
    PLACE = "be in it"


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """A path that is there."""

    path: Path
    use: Use

    @property
    def words(self) -> str:
        return f"{self.use} {self.path}"


@contextmanager
def as_if(account: Account) -> Iterator[None]:
    """os.access(..., effective_ids=True) is asked for the account; for a process of one thread."""
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


def lacking(account: Account, needs: Iterable[Need]) -> list[Need]:
    """Those that the account has no access to."""
    with as_if(account):
        return [need for need in needs if not _granted(need.path, need.use)]


def _granted(path: Path, use: Use) -> bool:
    wanted = {Use.FILE: os.R_OK, Use.OWN: os.W_OK | os.X_OK, Use.PLACE: os.X_OK}
    return os.access(path, wanted.get(use, os.R_OK | os.X_OK), effective_ids=True)


def show(account: Account, needs: Sequence[Need]) -> None:
    """Makes the account reach what it lacks of `needs`, in a mount namespace that this process and
    its children have from now on. Raises StateError, and leaves all as it was, where that is not
    possible."""
    lacks, here = lacking(account, needs), Path.cwd()
    if not lacks:
        return
    home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    why, mask = "", os.umask(PASSABLE)
    try:
        _View(account).build(lacks)
        os.chdir(here)
        lacks = lacking(account, needs)
    except (OSError, StateError) as error:
        why = f" ({error})"
    try:
        os.umask(mask)
        if lacks:
            kernel.enter_mounts(home)
            os.chdir(here)
            told = "; ".join(need.words for need in lacks[:4])
            raise StateError(f"{account.words} cannot {told}{why}")
    finally:
        os.close(home)


class _View:
    """Built once, in this order: everything is opened, private folders are replaced, and what was
    opened gets its place in them."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._opened: dict[Path, tuple[int, Use]] = {}
        """{absolute path: a descriptor of what lies there, what it is wanted for}"""

    def build(self, lacks: Sequence[Need]) -> None:
        kernel.own_mounts()
        with ExitStack() as files:  # of these mounts: no other's can be bound
            for need in lacks:
                for path in {need.path.absolute(), need.path.resolve()}:
                    self._open(path, need.use, files)
            closed, scratch, order = self._closed(), self._scratch(files), self._order()
            for folder in (scratch, *closed):
                kernel.mount("tmpfs", str(folder), "tmpfs", FLAGS, SKELETON)
            for number, (path, real) in enumerate(order):
                if path != real and real in self._opened and path.resolve() == real:
                    continue  # its links are still there
                descriptor, use = self._opened[path]
                if use is Use.PLACE:
                    path.mkdir(parents=True, exist_ok=True)
                else:
                    self._place(path, descriptor, scratch / str(number))
            kernel.unmount(str(scratch), MNT_DETACH)
            for folder in closed:
                flags = FLAGS | kernel.MS_REMOUNT | kernel.MS_RDONLY
                kernel.mount("tmpfs", str(folder), "tmpfs", flags)

    def _open(self, path: Path, use: Use, files: ExitStack) -> None:
        if path in self._opened and use is not Use.OWN:
            return
        if len(self._opened) >= ENTRIES_MAX:
            raise StateError(f"{path} and what lies beside it are too many files to be shown")
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        files.callback(os.close, descriptor)
        if use is not Use.CODE or self._allows(descriptor, os.R_OK | os.X_OK):
            self._opened[path] = (descriptor, use)
            return
        self._opened[path] = (descriptor, Use.PLACE)
        for entry in sorted(_code_in(path)):
            with suppress(OSError):  # a link that leads nowhere
                self._open(entry, Use.CODE if entry.is_dir() else Use.FILE, files)

    def _closed(self) -> list[Path]:
        """The outermost folders that the account cannot enter, on the way to what was opened."""
        found: set[Path] = set()
        with as_if(self._account):
            for path, (_, use) in self._opened.items():
                way = [*reversed(path.parents), *[path] * (use is Use.PLACE)]
                shut = (w for w in way if not os.access(w, os.X_OK, effective_ids=True))
                found.update(itertools.islice(shut, 1))
        real = {folder.resolve() for folder in found}
        return sorted(folder for folder in real if real.isdisjoint(folder.parents))

    def _order(self) -> list[tuple[Path, Path]]:
        """(A path that was opened, where it leads). What lies there comes first: behind a private
        folder that was replaced, a link leads nowhere until then."""
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
        several = ", ".join(map(str, (*SCRATCHES, *TEMPORARY)))
        raise StateError(f"a view is built in a folder, and of {several} none can be had")

    def _allows(self, descriptor: int, wanted: int) -> bool:
        """What its own mode allows, whatever folders lead to it."""
        with as_if(self._account):
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
        kernel.mount(str(what), str(path), None, kernel.MS_BIND | kernel.MS_REC)


def _remove(folder: Path) -> None:
    with suppress(OSError):  # a system that went read-only meanwhile
        folder.rmdir()


def _code_in(folder: Path) -> Iterator[Path]:
    """Python files and packages: nothing else of a private folder is shown for its code's sake."""
    for entry in folder.iterdir():
        is_package = entry.is_dir() and entry.name[0] != "." and any(entry.glob("*.py"))
        if is_package or (entry.suffix in (".py", ".so") and entry.is_file()):
            yield entry
