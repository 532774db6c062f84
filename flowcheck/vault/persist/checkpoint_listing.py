"""The files of a checkpoint with their sizes and sha256, as its manifest lists them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
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
from flowcheck.untrusted_paths import refuse_conflicting_names, step_number

FILES_MAX = 65_536
"""Most files of one checkpoint: twice as many as the ranks of the largest jobs have shards. A
choice that bounds memory."""
BYTES_MAX = 1 << 50
"""Most bytes of one checkpoint, and of each file: a pebibyte. A choice: a listing with more is
refused before any room is reserved for it."""
_SUM = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a checkpoint. Its name is relative to the checkpoint's folder, with / between
    folders."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CheckpointListing:
    """The step and the files of a checkpoint."""

    step: Step
    digest: str
    files: tuple[ListedFile, ...]
    """All files; the manifest is the last one."""
    tainted: bool = False
    """Elements of it rest on bytes that no mirror brought, as its manifest says."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def read_listing(folder: Path) -> CheckpointListing:
    """The listing of a local checkpoint folder, from its manifest. Raises StateError if there is no
    valid manifest."""
    return listing_of_manifest(manifest_text(folder), str(folder), folder)


def listing_of_manifest(
    manifest: bytes, where: str, folder: Path | None = None
) -> CheckpointListing:
    """The listing that a manifest's text states. where: the checkpoint's name in errors. folder:
    the files, whose sizes are read there where an old manifest does not state them. Raises
    StateError for a text that is no manifest or names files outside its folder."""
    return _listed(decode_manifest(manifest, f"{where}/{MANIFEST}"), manifest, where, folder)


def verify_checkpoint(folder: Path) -> CheckpointListing:
    """Reads all files of a checkpoint folder, verifies the checksums of files and tensors, and
    returns the listing. Raises StateError with the first difference."""
    text = manifest_text(folder)
    manifest = decode_manifest(text, f"{folder}/{MANIFEST}")
    found = _listed(manifest, text, str(folder), folder)
    for fault in faults_in(folder, manifest):
        raise StateError(findings.IN_CHECKPOINT(checkpoint=folder, fault=fault.finding))
    return found


def checked_listing(
    step: Step, digest: str, files: tuple[ListedFile, ...], where: str
) -> CheckpointListing:
    """A listing whose parts come from a manifest or a server, after checks. Raises StateError that
    names `where` for names that are not files below the checkpoint's folder, and for impossible
    sizes and checksums."""
    step_number(step, where)
    if len(files) > FILES_MAX:
        many = findings.TOO_MANY_FILES(where=where, files=len(files), limit=FILES_MAX)
        raise StateError(many)
    refuse_conflicting_names((file.name for file in files), where)
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
    refuse_conflicting_names((name for name, _ in old), where)
    for name, sha256 in old:
        assert folder is not None
        path = folder / name
        if not path.is_file():
            raise StateError(findings.LISTED_FILE_MISSING(path))
        found.append(ListedFile(name, path.stat().st_size, sha256))
    if MANIFEST in [file.name for file in found]:
        raise StateError(findings.LISTS_ITSELF(where=where, manifest=MANIFEST))
    own = ListedFile(MANIFEST, len(text), hashlib.sha256(text).hexdigest())
    listed = checked_listing(told.step, told.digest, (*found, own), where)
    return replace(listed, tainted=bool(told.tainted))
