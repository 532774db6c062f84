"""Guards what an output may overwrite: an empty folder, an earlier output of FlowCheck, or a single
file by a single file; nothing else.

`--force` deletes what lies at a path that a user typed, and the user may have mistyped it. So
FlowCheck never deletes files that it did not write, nor anything that the output is made from.
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
from flowcheck.replica.checkpoint_files.latest_pointer import CHECKPOINT_NAME_PREFIX, LATEST
from flowcheck.replica.checkpoint_files.manifest import (
    MANIFEST,
    decode_manifest,
    load_manifest,
    manifest_beside,
    text_at,
)
from flowcheck.step_numbers import Step
from flowcheck.vault.replaced_owner import check_owner_of_replaced, earlier_output

SET_ASIDE_SUFFIX = ".old.tmp"
"""Suffix of an earlier output that is renamed aside until the new output is complete."""
_ASIDE = re.compile(r"\.\d+\.old\.tmp\Z")
SHOWN = 4
"""Most names that an error lists. A choice of layout."""
KEY = "--out"
INDEX = "jobs.json"
"""Index of a folder with the outputs of all jobs: it states the step and the file of each job."""
ListOutputFiles = Callable[[Path], set[str]]
"""Returns the files of the output in a folder, by names relative to the folder. Empty: the folder
is not an output of FlowCheck."""


@dataclass(frozen=True, slots=True)
class ProtectedPath:
    """A path that no output may replace, contain or lie in."""

    path: Path
    description: str
    takes_new: bool = False
    """True: a new output may lie directly in this folder, if its path does not exist yet."""


def files_by_manifest(folder: Path) -> set[str]:
    """The files of an output of one step, by its manifest; empty: there is no valid manifest."""
    try:
        manifest = load_manifest(folder)
    except StateError:
        return set()
    return {MANIFEST, *(manifest.files or manifest.sha256)}


class _Kept(msgspec.Struct):
    job: int
    checkpoint: str | None


class JobsIndex(msgspec.Struct):
    """The fields of the index that are read again."""

    step: Step | None
    jobs: list[_Kept]


def read_index(folder: Path) -> JobsIndex | None:
    """The index in a folder; None: there is no valid one."""
    path = folder / INDEX
    try:
        return None if path.is_symlink() else msgspec.json.decode(path.read_bytes(), type=JobsIndex)
    except (OSError, *DECODE_ERRORS):
        return None


def files_by_index(folder: Path) -> set[str]:
    """The files of an output of several jobs, one file per job, by its index; empty: there is no
    valid index."""
    told = read_index(folder)
    if told is None:
        return set()
    files = [one.checkpoint for one in told.jobs if one.checkpoint is not None]
    plain = all(Path(name).name == name and (folder / name).is_file() for name in files)
    return {INDEX, *files} if plain else set()


def files_by_manifest_and_index(folder: Path) -> set[str]:
    """The files of an output of either kind, by its manifest and its index."""
    return files_by_manifest(folder) | files_by_index(folder)


def is_empty(out: Path) -> bool:
    """Whether `out` is an empty folder, not a link."""
    return out.is_dir() and not out.is_symlink() and not any(out.iterdir())


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTarget:
    """Where an output is written, and what it may replace."""

    path: Path
    folder: bool
    """True: the output is a folder, which may replace an empty folder. False: it is a file."""
    force: bool = False
    """True: the output may replace an earlier output of FlowCheck."""
    protected: tuple[ProtectedPath, ...] = ()
    """The inputs that the output is made from, and other paths that must stay."""
    listed: ListOutputFiles = files_by_manifest
    """Lists the files of an earlier output folder. A folder with other files is not replaced."""

    def check(self) -> None:
        """Checks that the output may be written. Called before anything is written, and again
        before anything is replaced. Raises ConfigError that names the obstacle."""
        out, there = self.path, os.path.lexists(self.path)
        if there and not self.force and not (self.folder and is_empty(out)):
            raise ConfigError(KEY, str(out), findings.EXISTS())
        if out.name in ("", ".."):
            raise ConfigError(KEY, str(out), findings.NO_NAME())
        if not out.parent.is_dir():
            raise ConfigError(KEY, str(out), findings.NO_PARENT(out.parent))
        check_protected(out, self.protected)
        if there:
            _check_kind(out, self.listed if self.folder else files_by_manifest, folder=self.folder)
            check_owner_of_replaced(out, KEY)
        if not self.folder:
            _check_beside(out)

    @contextmanager
    def replacing(self) -> Iterator[Callable[[], None]]:
        """Yields a function to call right before the output gets its name. The function checks the
        path again and renames an earlier output aside. The end of the `with` deletes the earlier
        output; after an error it gets its name back.

        Raises ConfigError as `check` does, both on entry and in the function.
        """
        self.check()
        out, aside = self.path, list[tuple[Path, Path]]()

        def make_room() -> None:
            self.check()
            beside = [] if self.folder else [manifest_beside(out)]
            # A folder is only renamed onto none, and a manifest must never speak of another file.
            for own in ([out] if out.is_dir() else []) + beside:
                if os.path.lexists(own):
                    away = own.with_name(f".{own.name}.{os.getpid()}{SET_ASIDE_SUFFIX}")
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
    """Yields (path to write the output to, path to write the manifest of a one-file output to).
    After the `with` the output is complete and on disk, and belongs to whom the earlier one did;
    after an error everything is as before.

    manifest: the output has a manifest; None is yielded for its path if the output is a folder.
    Raises ConfigError as `OutputTarget.check` does; OSError that names the output if there is no
    room.
    """
    path, is_beside = target.path, manifest and not target.folder

    def as_earlier(place: Path) -> None:
        if earlier is not None:
            earlier.pass_on(place)

    with (
        naming_file(path),
        target.replacing() as make_room,
        # On disk before the file has its name, and named behind it.
        atomic_path_per_process(manifest_beside(path), before_name=as_earlier)
        if is_beside
        else nullcontext() as beside,
        atomic_path_per_process(path, folder=target.folder, before_name=as_earlier) as place,
    ):
        earlier = earlier_output(path)
        yield place, beside
        make_room()


def check_protected(out: Path, protected: Sequence[ProtectedPath]) -> None:
    """Raises ConfigError if `out` is one of the protected paths, contains one or lies in one, also
    by way of links or bind mounts."""
    place = Path(os.path.realpath(out))
    for one in protected:
        if not one.path.exists():
            continue
        if _same(place, one.path):
            raise ConfigError(KEY, str(out), findings.IS_INPUT(one.description))
        if _within(Path(os.path.realpath(one.path)), place):
            right = findings.HOLDS_INPUT(what=one.description, path=one.path)
            raise ConfigError(KEY, str(out), right)
        if _within(place, one.path) and not _is_new(place, one):
            right = findings.LIES_IN_INPUT(what=one.description, path=one.path)
            raise ConfigError(KEY, str(out), right)


def _sweep(out: Path, listed: ListOutputFiles) -> None:
    """Deletes earlier outputs that a killed process had renamed aside."""
    for name in (out.name, manifest_beside(out).name):
        for left in out.parent.glob(f".{glob.escape(name)}.*{SET_ASIDE_SUFFIX}"):
            if not _ASIDE.search(left.name) or left.is_symlink():
                continue
            if not left.is_dir():
                with suppress(StateError, OSError):
                    decode_manifest(text_at(left, out), str(left))
                    left.unlink()
            elif not any(files_not_ours(left, listed)):
                shutil.rmtree(left, ignore_errors=True)


def files_not_ours(folder: Path, listed: ListOutputFiles = files_by_manifest) -> Iterator[str]:
    """Names in a folder that do not belong to the output that `listed` finds there. Without such an
    output these are all names."""
    own = listed(folder)
    folders = {str(up) for name in own for up in PurePosixPath(name).parents}
    for at, below, files in os.walk(folder):
        inner = Path(at).relative_to(folder)
        for name in (*sorted(files), *sorted(below)):
            path = (inner / name).as_posix()
            is_folder = name in below and not (Path(at) / name).is_symlink()
            if path not in (folders if is_folder else own):
                yield f"{path}/" if is_folder else path


def _check_kind(out: Path, listed: ListOutputFiles, *, folder: bool) -> None:
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


def _check_ours(out: Path, folder: Path, listed: ListOutputFiles) -> None:
    """Raises ConfigError that names `out` if `folder`, its present place, has foreign files."""
    found = list(islice(files_not_ours(folder, listed), SHOWN + 1))
    if found:
        entry = findings.HOLDS_MORE_FOREIGN if len(found) > SHOWN else findings.HOLDS_FOREIGN
        raise ConfigError(KEY, str(out), entry(found[:SHOWN]))


def _check_beside(out: Path) -> None:
    """Raises ConfigError if the manifest beside a one-file output, which would be replaced too, is
    not a manifest of FlowCheck."""
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
    named = place.name.startswith(CHECKPOINT_NAME_PREFIX) or place.name == LATEST
    directly = _same(place.parent, one.path)
    return one.takes_new and directly and not named and not os.path.lexists(place)


def _within(inner: Path, outer: Path) -> bool:
    return any(_same(path, outer) for path in (inner, *inner.parents))


def _same(one: Path, other: Path) -> bool:
    """Whether both paths are the same file for the file system, so that a bind mount hides
    nothing."""
    try:
        return one.samefile(other)
    except OSError:
        return False
