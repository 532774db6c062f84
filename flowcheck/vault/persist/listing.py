"""The files of a checkpoint with their sizes and sums, as its manifest tells them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.replica.files.check import check as faults_in
from flowcheck.replica.files.manifest import (
    MANIFEST,
    Manifest,
    decode_manifest,
    inside,
    manifest_text,
)


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
    return listing_of(manifest_text(folder), str(folder), folder)


def listing_of(manifest: bytes, where: str, folder: Path | None = None) -> Listing:
    """Of a manifest's text. folder: where sizes are, of manifests that do not tell them. Raises
    StateError for what is no manifest, or names files outside its folder."""
    return _listed(decode_manifest(manifest, f"{where}/{MANIFEST}"), manifest, where, folder)


def check(folder: Path) -> Listing:
    """The listing of a folder whose files were read and have their sums, tensors, too. Raises
    StateError with the first that has not."""
    text = manifest_text(folder)
    manifest = decode_manifest(text, f"{folder}/{MANIFEST}")
    found = _listed(manifest, text, str(folder), folder)
    for fault in faults_in(folder, manifest):
        raise StateError(f"{folder}: {fault}")
    return found


def refuse_strange(named: Sequence[File], where: str) -> None:
    """Raises StateError for a name that is no file below the checkpoint's folder."""
    for file in named:
        if not inside(file.name) or file.size_bytes < 0:
            raise StateError(f"{where}: names {file.name!r}, which is no file of a checkpoint")


def _listed(told: Manifest, text: bytes, where: str, folder: Path | None) -> Listing:
    found = [File(name, one.bytes, one.sha256) for name, one in sorted(told.files.items())]
    old = () if found or folder is None else sorted(told.sha256.items())
    refuse_strange([*found, *(File(name, 0, sha256) for name, sha256 in old)], where)
    for name, sha256 in old:
        assert folder is not None
        path = folder / name
        if not path.is_file():
            raise StateError(f"{path}: is missing")
        found.append(File(name, path.stat().st_size, sha256))
    if MANIFEST in [file.name for file in found]:
        raise StateError(f"{where}: {MANIFEST} names itself")
    own = File(MANIFEST, len(text), hashlib.sha256(text).hexdigest())
    return Listing(told.step, told.digest, (*found, own))
