"""The files of a checkpoint with their sizes and sums, as its manifest tells them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from flowcheck.errors import StateError
from flowcheck.replica.files.manifest import MANIFEST
from flowcheck.replica.kept.digest import sha256_file


class _Sum(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class _Told(msgspec.Struct, frozen=True):
    """Of the manifest what has to do with files."""

    step: int
    digest: str = ""
    files: dict[str, _Sum] = {}
    sha256: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class File:
    """One file; `name` is relative to the checkpoint's folder, with / between folders."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What a checkpoint consists of."""

    step: int
    digest: str
    files: tuple[File, ...]
    """The manifest last."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def listing(folder: Path) -> Listing:
    """Of a folder on this machine. Raises StateError where it holds no whole checkpoint."""
    try:
        text = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise StateError(f"{folder}: no whole checkpoint: {MANIFEST}: {error.strerror}") from error
    return listing_of(text, str(folder), folder)


def listing_of(manifest: bytes, where: str, folder: Path | None = None) -> Listing:
    """Of a manifest's text. folder: where sizes are, of manifests that do not tell them. Raises
    StateError for what is no manifest, or names files outside its folder."""
    try:
        told = msgspec.json.decode(manifest, type=_Told)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StateError(f"{where}: {MANIFEST} is not a manifest of ours: {error}") from error
    files = [File(name, one.bytes, one.sha256) for name, one in sorted(told.files.items())]
    if not files and folder is not None:
        for name, sha256 in sorted(told.sha256.items()):
            path = folder / name
            if not path.is_file():
                raise StateError(f"{path}: is missing")
            files.append(File(name, path.stat().st_size, sha256))
    refuse_strange(files, where)
    if MANIFEST in [file.name for file in files]:
        raise StateError(f"{where}: {MANIFEST} names itself")
    own = File(MANIFEST, len(manifest), hashlib.sha256(manifest).hexdigest())
    return Listing(told.step, told.digest, (*files, own))


def refuse_strange(files: Sequence[File], where: str) -> None:
    """Raises StateError for a name that is no file below the checkpoint's folder."""
    for file in files:
        pure = PurePosixPath(file.name)
        parts = file.name.split("/")
        strange = "\0" in file.name or any(part in ("", ".", "..") for part in parts)
        if pure.is_absolute() or strange or file.size_bytes < 0:
            raise StateError(f"{where}: names {file.name!r}, which is no file of a checkpoint")


def check(folder: Path) -> Listing:
    """The listing of a folder whose files were read and have their sums. Raises StateError with the
    name of the first that has not."""
    found = listing(folder)
    for file in found.files:
        path = folder / file.name
        if not path.is_file() or path.stat().st_size != file.size_bytes:
            raise StateError(f"{path}: is not there with its {file.size_bytes:,} bytes")
        if sha256_file(path) != file.sha256:
            raise StateError(f"{path}: is not the file that {MANIFEST} speaks of")
    return found
