"""The files of a checkpoint with their sizes and sha256, as its manifest lists them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.findings.catalog import checkpoint_damage as findings
from flowcheck.replica.checkpoint_files.checksum_verifier import verify_files as faults_in
from flowcheck.replica.checkpoint_files.manifest import (
    MANIFEST,
    Manifest,
    decode_manifest,
    manifest_text,
)
from flowcheck.step_numbers import Step
from flowcheck.untrusted_paths import refuse_unlike_files, step_number

FILES_MAX = 65_536
"""Files of one checkpoint: a shard for each rank of the largest jobs, and as many again. A choice
that bounds memory."""
BYTES_MAX = 1 << 50
"""Bytes of one checkpoint, and of each file: a pebibyte. A choice: what tells of more is refused
before anything is made for it."""
_SUM = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file; `name` is relative to the checkpoint's folder, with / between folders."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CheckpointListing:
    """What a checkpoint consists of."""

    step: Step
    digest: str
    files: tuple[ListedFile, ...]
    """The manifest last."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def read_listing(folder: Path) -> CheckpointListing:
    """Of a folder on this machine. Raises StateError where it holds no whole checkpoint."""
    return listing_of_manifest(manifest_text(folder), str(folder), folder)


def listing_of_manifest(
    manifest: bytes, where: str, folder: Path | None = None
) -> CheckpointListing:
    """Of a manifest's text. folder: where sizes are, of manifests that do not tell them. Raises
    StateError for what is no manifest, or names files outside its folder."""
    return _listed(decode_manifest(manifest, f"{where}/{MANIFEST}"), manifest, where, folder)


def verify_checkpoint(folder: Path) -> CheckpointListing:
    """The listing of a folder, after its files and tensors were read and their checksums compared.
    Raises StateError with the first that differs."""
    text = manifest_text(folder)
    manifest = decode_manifest(text, f"{folder}/{MANIFEST}")
    found = _listed(manifest, text, str(folder), folder)
    for fault in faults_in(folder, manifest):
        raise StateError(findings.IN_CHECKPOINT(checkpoint=folder, fault=fault.finding))
    return found


def checked(
    step: Step, digest: str, files: tuple[ListedFile, ...], where: str
) -> CheckpointListing:
    """A listing from a manifest or a server. Raises StateError, which names `where`, for names that
    are not files below the checkpoint's folder, and for impossible sizes and checksums."""
    step_number(step, where)
    if len(files) > FILES_MAX:
        many = findings.TOO_MANY_FILES(where=where, files=len(files), limit=FILES_MAX)
        raise StateError(many)
    refuse_unlike_files((file.name for file in files), where)
    for file in files:
        if not 0 <= file.size_bytes <= BYTES_MAX or not _SUM.fullmatch(file.sha256):
            told = {"bytes": file.size_bytes, "sha256": f"{file.sha256!r:.80}"}
            raise StateError(findings.IMPOSSIBLE_FILE(where=where, file=repr(file.name), **told))
    found = CheckpointListing(step, digest, files)
    if found.size_bytes > BYTES_MAX:
        large = findings.TOO_MANY_BYTES(where=where, bytes=found.size_bytes, limit=BYTES_MAX)
        raise StateError(large)
    return found


def _listed(told: Manifest, text: bytes, where: str, folder: Path | None) -> CheckpointListing:
    found = [ListedFile(name, one.bytes, one.sha256) for name, one in sorted(told.files.items())]
    old = () if found or folder is None else sorted(told.sha256.items())
    refuse_unlike_files((name for name, _ in old), where)
    for name, sha256 in old:
        assert folder is not None
        path = folder / name
        if not path.is_file():
            raise StateError(findings.LISTED_FILE_MISSING(path))
        found.append(ListedFile(name, path.stat().st_size, sha256))
    if MANIFEST in [file.name for file in found]:
        raise StateError(findings.LISTS_ITSELF(where=where, manifest=MANIFEST))
    own = ListedFile(MANIFEST, len(text), hashlib.sha256(text).hexdigest())
    return checked(told.step, told.digest, (*found, own), where)
