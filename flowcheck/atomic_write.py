"""Atomic writes: files and folders appear complete under their name, or not at all."""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flowcheck.errors import FlowCheckError
from flowcheck.private_files import PRIVATE_FILE_MODE, PRIVATE_FOLDER_MODE, make_private, write_new

_APART = re.compile(r"\.\d+\.tmp\Z")
"""The end of a name that `atomic_path_per_process` gives: the number of the process that writes."""


def write_atomically(path: Path, data: bytes | memoryview, *, durable: bool = True) -> None:
    """The old content or the new one, at every instant. durable: it is on disk when this returns;
    else it need not outlive the machine."""
    with atomic_path(path, durable=durable) as place:
        write_new(place, data)


def write_all_at(descriptor: int, data: bytes, at: int) -> None:
    """All of it from byte `at` on, which the file ends at; where it raises OSError, and after a
    kill but for that instant, the file ends there as before."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.pwrite(descriptor, view, at + len(data) - len(view)) :]
    except OSError:
        os.ftruncate(descriptor, at)
        raise


@contextmanager
def atomic_path(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Where to write a file or a folder that gets its name when it is whole, its owner's alone
    (private_files.py); nothing of it stays after an error. One process writes `path` at a time:
    what a killed one left goes first."""
    place = temporary_path(path)
    _remove(place)
    with _taking_its_name(place, path, durable=durable):
        yield place


def temporary_path(path: Path) -> Path:
    """Where `atomic_path` has `path` written."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def atomic_path_per_process(
    path: Path,
    *,
    leftovers: str | None = None,
    folder: bool = False,
    before_name: Callable[[Path], None] = lambda _: None,
) -> Iterator[Path]:
    """As `atomic_path`, where several processes may write at once: each at a place of its own, made
    here as a file or a folder. leftovers: a pattern of names beside `path`, by default of those
    that are made here for it; what a killed process left under one of them goes first.
    before_name: called with what is whole and private, right before it gets its name."""
    for left in path.parent.glob(leftovers or f".{glob.escape(path.name)}.*.tmp"):
        if _APART.search(left.name):  # a user may have named something so as well
            _sweep(left)
    place = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # see _APART
    with _named_as(path, place):
        held = _made(place, folder=folder)
    try:
        with _taking_its_name(place, path, durable=True, before_name=before_name):
            yield place
    finally:
        os.close(held)


def fsync_path(path: Path) -> None:
    """fsync of a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _taking_its_name(
    place: Path,
    path: Path,
    *,
    durable: bool,
    before_name: Callable[[Path], None] = lambda _: None,
) -> Iterator[None]:
    try:
        with _named_as(path, place):
            yield
            make_private(place, path.parent)
            before_name(place)
            if durable:
                fsync_path(place)
            place.replace(path)
    except (Exception, KeyboardInterrupt, SystemExit):
        _remove(place)
        raise
    if durable:
        fsync_path(path.parent)


@contextmanager
def _named_as(path: Path, place: Path) -> Iterator[None]:
    """An OSError from within that names `place`, or what lies in it, or nothing, names `path`: it
    is what the user knows, and `place` is gone when the user looks."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FlowCheckError) or error.errno is None:
            raise
        named = place if error.filename is None else Path(os.fsdecode(error.filename))
        if not named.is_relative_to(place):
            raise
        known = path / named.relative_to(place)
        raise OSError(error.errno, os.strerror(error.errno), str(known)) from error


def _made(place: Path, *, folder: bool) -> int:
    """A descriptor that locks `place` as long as this process lives, made anew."""
    while True:
        _remove(place)  # of a process that had this number
        if folder:
            place.mkdir(mode=PRIVATE_FOLDER_MODE)
        else:
            place.touch(mode=PRIVATE_FILE_MODE, exist_ok=False)
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):  # NFS locks no folder: nobody else's is taken away there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), place.stat()):
                return descriptor
        os.close(descriptor)  # swept before it was locked


def _sweep(left: Path) -> None:
    """Takes away what no living process is writing."""
    try:
        descriptor = os.open(left, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    else:
        _remove(left)
    finally:
        os.close(descriptor)


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)
