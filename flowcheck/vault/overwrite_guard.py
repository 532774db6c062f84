"""What an output may overwrite: an empty folder, an output of ours, one file for one file;
never anything else.

`--force` takes away what lies at a path that a user typed. So what nobody but the user can have put
there stays, whatever was typed, and so does all that the output is made from.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

import msgspec

from flowcheck.atomic_write import atomic_path_per_process
from flowcheck.errors import DECODE_ERRORS, ConfigError, StateError, naming_file
from flowcheck.findings.catalog import output_paths as findings
from flowcheck.replica.checkpoint_files.latest_pointer import LATEST, STEP
from flowcheck.replica.checkpoint_files.manifest import (
    MANIFEST,
    decode_manifest,
    load_manifest,
    manifest_beside,
    text_at,
)
from flowcheck.step_numbers import Step

ASIDE = ".old.tmp"
"""Behind what waits to go until what takes its place is there."""
_ASIDE = re.compile(r"\.\d+\.old\.tmp\Z")
SHOWN = 4
"""Names that an error lists. A choice of layout."""
KEY = "--out"
INDEX = "jobs.json"
"""Of a folder with the outputs of all jobs: which step, and whose each of them is."""
Listed = Callable[[Path], set[str]]
"""Names, relative to the folder, of the files that an output of FlowCheck has there; empty: the
folder is not an output of FlowCheck."""


@dataclass(frozen=True, slots=True)
class ProtectedPath:
    """Something no output may be, hold or lie in."""

    path: Path
    what: str
    takes_new: bool = False
    """Outputs may lie directly in it where nothing is there yet: a folder of many things."""


def by_manifest(folder: Path) -> set[str]:
    """Of an output of one step."""
    try:
        manifest = load_manifest(folder)
    except StateError:
        return set()
    return {MANIFEST, *(manifest.files or manifest.sha256)}


class _Kept(msgspec.Struct):
    job: int
    checkpoint: str | None


class _Index(msgspec.Struct):
    """What of the index is read again."""

    step: Step | None
    jobs: list[_Kept]


def by_index(folder: Path) -> set[str]:
    """Of an output of several jobs, a file each."""
    path = folder / INDEX
    try:
        if path.is_symlink():
            return set()
        told = msgspec.json.decode(path.read_bytes(), type=_Index)
    except (OSError, *DECODE_ERRORS):
        return set()
    files = [one.checkpoint for one in told.jobs if one.checkpoint is not None]
    plain = all(Path(name).name == name and (folder / name).is_file() for name in files)
    return {INDEX, *files} if plain else set()


def by_either(folder: Path) -> set[str]:
    """Where it is not known which of them was asked for."""
    return by_manifest(folder) | by_index(folder)


def is_empty(out: Path) -> bool:
    """A folder that nothing is lost with."""
    return out.is_dir() and not out.is_symlink() and not any(out.iterdir())


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTarget:
    """Where an output is written, and of what it may take the place."""

    path: Path
    folder: bool
    """What is written is one, which may take an empty one's place, else a file."""
    force: bool = False
    """It takes the place of an output of ours."""
    protected: tuple[ProtectedPath, ...] = ()
    """What the output is made from."""
    listed: Listed = by_manifest
    """Of what folder it may take the place."""

    def check(self) -> None:
        """Before anything is written, and again before anything is replaced. Raises ConfigError,
        which names the obstacle."""
        out, there = self.path, os.path.lexists(self.path)
        if there and not self.force and not (self.folder and is_empty(out)):
            raise ConfigError(KEY, str(out), findings.EXISTS())
        if out.name in ("", ".."):
            raise ConfigError(KEY, str(out), findings.NO_NAME())
        if not out.parent.is_dir():
            raise ConfigError(KEY, str(out), findings.NO_PARENT(out.parent))
        check_protected(out, self.protected)
        if there:
            _check_kind(out, self.listed if self.folder else by_manifest, folder=self.folder)
        if not self.folder:
            _check_beside(out)

    @contextmanager
    def replacing(self) -> Iterator[Callable[[], None]]:
        """What is called right before an output gets its name: what is there is looked at again and
        set aside. It goes at the end of the `with`; after an error it has its name back.

        Raises ConfigError as `check`, at once and when called.
        """
        self.check()
        out, aside = self.path, list[tuple[Path, Path]]()

        def make_room() -> None:
            self.check()
            beside = [] if self.folder else [manifest_beside(out)]
            # A folder is only renamed onto none, and a manifest must never speak of another file.
            for own in ([out] if out.is_dir() else []) + beside:
                if os.path.lexists(own):
                    away = own.with_name(f".{own.name}.{os.getpid()}{ASIDE}")
                    own.rename(away)
                    aside.append((own, away))
                    if away.is_dir():
                        _check_ours(out, away, self.listed)  # what came while it was looked at

        try:
            yield make_room
        except BaseException:
            for own, away in reversed(aside):
                if not os.path.lexists(own):
                    away.rename(own)
            raise
        for _, away in aside:
            shutil.rmtree(away) if away.is_dir() else away.unlink()
        _sweep(out, self.listed)


@contextmanager
def new_output(
    target: OutputTarget, *, manifest: bool = False
) -> Iterator[tuple[Path, Path | None]]:
    """(where to write an output, where the manifest that lies beside a file): it is there whole and
    on disk behind the `with`, or all is as before. manifest: it has one.

    Raises ConfigError as `OutputTarget.check`; OSError, which names the output, where there is no
    room.
    """
    path, is_beside = target.path, manifest and not target.folder
    with (
        naming_file(path),
        target.replacing() as make_room,
        # On disk before the file has its name, and named behind it.
        atomic_path_per_process(manifest_beside(path)) if is_beside else nullcontext() as beside,
        atomic_path_per_process(path, folder=target.folder) as place,
    ):
        yield place, beside
        make_room()


def check_protected(out: Path, protected: Sequence[ProtectedPath]) -> None:
    """Raises ConfigError where `out` is one of these, holds or lies in one, by whatever name."""
    place = Path(os.path.realpath(out))
    for one in protected:
        if not one.path.exists():
            continue
        if _same(place, one.path):
            raise ConfigError(KEY, str(out), findings.IS_INPUT(one.what))
        if _within(Path(os.path.realpath(one.path)), place):
            right = findings.HOLDS_INPUT(what=one.what, path=one.path)
            raise ConfigError(KEY, str(out), right)
        if _within(place, one.path) and not _is_new(place, one):
            right = findings.LIES_IN_INPUT(what=one.what, path=one.path)
            raise ConfigError(KEY, str(out), right)


def _sweep(out: Path, listed: Listed) -> None:
    """Takes away what a killed process had set aside of an output of ours."""
    for name in (out.name, manifest_beside(out).name):
        for left in out.parent.glob(f".{glob.escape(name)}.*{ASIDE}"):
            if not _ASIDE.search(left.name) or left.is_symlink():
                continue
            if not left.is_dir():
                with suppress(StateError, OSError):
                    decode_manifest(text_at(left, out), str(left))
                    left.unlink()
            elif not any(foreign_in(left, listed)):
                shutil.rmtree(left, ignore_errors=True)


def foreign_in(folder: Path, listed: Listed = by_manifest) -> Iterator[str]:
    """Names of what lies in a folder and is of no output of ours there: all, where nothing is
    listed. None of an empty folder."""
    own = listed(folder)
    folders = {str(up) for name in own for up in PurePosixPath(name).parents}
    for at, below, files in os.walk(folder):
        inner = Path(at).relative_to(folder)
        for name in (*sorted(files), *sorted(below)):
            path = (inner / name).as_posix()
            is_folder = name in below and not (Path(at) / name).is_symlink()
            if path not in (folders if is_folder else own):
                yield f"{path}/" if is_folder else path


def _check_kind(out: Path, listed: Listed, *, folder: bool) -> None:
    mode = out.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise ConfigError(KEY, str(out), findings.IS_LINK(os.path.realpath(out)))
    if stat.S_ISREG(mode):
        if folder:
            raise ConfigError(KEY, str(out), findings.IS_FILE())
        return
    if not stat.S_ISDIR(mode):
        raise ConfigError(KEY, str(out), findings.IS_SPECIAL())
    if os.path.ismount(out):
        raise ConfigError(KEY, str(out), findings.IS_MOUNT())
    _check_ours(out, out, listed)


def _check_ours(out: Path, folder: Path, listed: Listed) -> None:
    """folder: where it lies just now."""
    found = list(islice(foreign_in(folder, listed), SHOWN + 1))
    if found:
        entry = findings.HOLDS_MORE_FOREIGN if len(found) > SHOWN else findings.HOLDS_FOREIGN
        raise ConfigError(KEY, str(out), entry(found[:SHOWN]))


def _check_beside(out: Path) -> None:
    """The manifest beside a file is replaced as well."""
    beside = manifest_beside(out)
    if not os.path.lexists(beside):
        return
    foreign = findings.FOREIGN_MANIFEST(beside.name)
    if beside.is_symlink():
        raise ConfigError(KEY, str(out), foreign)
    try:
        decode_manifest(text_at(beside, out), str(beside))
    except StateError as error:
        raise ConfigError(KEY, str(out), foreign) from error


def _is_new(place: Path, one: ProtectedPath) -> bool:
    named = place.name.startswith(STEP) or place.name == LATEST
    directly = _same(place.parent, one.path)
    return one.takes_new and directly and not named and not os.path.lexists(place)


def _within(inner: Path, outer: Path) -> bool:
    return any(_same(path, outer) for path in (inner, *inner.parents))


def _same(one: Path, other: Path) -> bool:
    """Of the file system, so that a bind mount hides nothing."""
    try:
        return one.samefile(other)
    except OSError:
        return False
