"""The manifest of an output (manifest.json): its step, files, tensors and their sha256; written
last.

All checksums are sha256. A tensor's checksum is over its bytes as they lie in the files, so that
any program can verify it. `around` is over the bytes of a file that belong to no tensor (headers,
pickles).

Formats, all of which this release reads:

- 1 had no checksums of tensors; `sha256` held the checksums of files.
- 2 had sentences in `evidence` and `assumed`, and one sentence in `lacks`.
- 3 has findings in these fields: code, arguments, and the sentence for people.

A release that knows only formats 1 and 2 refuses a manifest of format 3 with an error that names
one of these fields. It cannot restore, serve, download or replace a checkpoint of format 3, and it
deletes only unfinished ones. So update the readers of checkpoints first.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.config import OptimizerConfig
from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog.checkpoint_damage import (
    FORMAT_UNKNOWN,
    MANIFEST_CHANGED,
    MANIFEST_FORBIDDEN,
    MANIFEST_TOO_LONG,
    MANIFEST_UNREADABLE,
    NO_MANIFEST,
    NO_MANIFEST_FILE,
    NO_SUCH_CHECKPOINT,
    SEVERAL_FILES,
)
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.finding import Finding
from flowcheck.private_files import user_name
from flowcheck.replica.optimizer.user_code_trust import with_untrusted_code
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.taint import TaintedRanges
from flowcheck.replica.user_code import plain_text
from flowcheck.step_numbers import Step
from flowcheck.untrusted_paths import step_number

FORMAT = 3
READABLE_FORMATS = (1, 2, 3)
MANIFEST = "manifest.json"
MANIFEST_SUFFIX = ".manifest.json"
"""Suffix of the manifest's name where the output is one file: it follows the file's name."""
MANIFEST_MAX_BYTES = 256 << 20
"""Most bytes of a manifest. A tensor takes about 300 bytes, so that 890,000 tensors fit. A longer
file is refused unread."""


class CheckpointKind(StrEnum):
    """The part of a trainer's state that an output holds."""

    FULL = "full"
    """Parameters and optimizer state."""
    PARAMETERS_ONLY = "parameters"
    """No optimizer state."""

    @classmethod
    def _missing_(cls, value: object) -> CheckpointKind | None:
        """Reads the texts of earlier releases. msgspec calls this method too."""
        return _EARLIER_KINDS.get(str(value))


_EARLIER_KINDS = {
    "parameters and optimizer state": CheckpointKind.FULL,
    "parameters, no optimizer state": CheckpointKind.PARAMETERS_ONLY,
}

FULL, PARAMETERS_ONLY = CheckpointKind.FULL, CheckpointKind.PARAMETERS_ONLY
FileSpan = tuple[str, int, int]
"""(file relative to the manifest's folder, first byte, number of bytes)."""


class FileSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and checksums of a file."""

    bytes: int
    sha256: str
    around: str
    """sha256 of the bytes that belong to no tensor."""


class TensorSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Type, checksum and place of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    at: tuple[FileSpan, ...]
    """The pieces whose bytes, one after the other, are the tensor's. Empty: it has no bytes."""


class _SameInAllFormats(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of a manifest that are the same in all formats."""

    format: int = FORMAT
    form: str = "flowcheck"
    """Name of the checkpoint format, a key of FORMATS
    (vault/checkpoint_formats/format_registry.py)."""
    step: Step
    digest: str
    """`Replica.digest` of this step (state_digest.py). Empty: no replica computed it."""
    torch_version: str
    """Version of torch that computed the steps."""
    kind: CheckpointKind = CheckpointKind.FULL
    older: dict[str, int] = {}
    """{parameter: its step}, for parameters that are from an earlier step than `step`."""
    tainted: TaintedRanges = {}
    """{parameter: [[start, stop, since]]}: elements [start, stop) in memory order, of the parameter
    and of its optimizer state, that rest on bytes which no mirror brought, from step `since` on."""
    layout: Layout | None = None
    """Layout of the parameters; only in FlowCheck's own format."""
    optimizer: OptimizerConfig | None = None
    """Settings of the optimizer; only in FlowCheck's own format."""
    sha256: dict[str, str] = {}
    """{file: sha256}; only in manifests of format 1."""
    files: dict[str, FileSum] = {}
    tensors: dict[str, TensorSum] = {}
    """{label: tensor}. A label is model/NAME or optimizer/NAME/STATE; the formats torch and dcp use
    keys of their own."""
    plain: dict[str, Any] = {}
    """State that is not a tensor (non_tensor_state.py); only in FlowCheck's own format."""


class Manifest(_SameInAllFormats, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A manifest of the newest format."""

    resume_caveats: tuple[Finding, ...] = msgspec.field(default=(), name="lacks")
    """Why a trainer that resumes from this output does not continue exactly as before. Empty: it
    does."""
    evidence: tuple[Finding, ...] = ()
    """Observations in the job's packets that support the output's correctness."""
    assumed: tuple[Finding, ...] = ()
    """Assumptions that no observation could have disproved."""
    seal: str = ""
    """sha256 of this file with zeros in this field, which is the last one. Format 1 had no seal."""


class _WithSentences(_SameInAllFormats, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A manifest of format 1 or 2."""

    lacks: str = ""
    seen: tuple[str, ...] = msgspec.field(default=(), name="evidence")
    rests_on: tuple[str, ...] = msgspec.field(default=(), name="assumed")
    seal: str = ""

    def of_today(self) -> Manifest:
        return Manifest(
            **{name: getattr(self, name) for name in _SameInAllFormats.__struct_fields__},
            resume_caveats=(earlier_finding(self.lacks),) if self.lacks else (),
            evidence=tuple(map(earlier_finding, self.seen)),
            assumed=tuple(map(earlier_finding, self.rests_on)),
            seal=self.seal,
        )


class _Format(msgspec.Struct):
    """The format's number alone. It is decoded first, since the other fields depend on it."""

    format: int


UNSEALED = "0" * 64
_SEALED = re.compile(rb'"seal": "([0-9a-f]{64})"\n}\n\Z')


def manifest_path(output: Path) -> Path:
    """Path of the manifest of an existing output, a folder or a file."""
    return output / MANIFEST if output.is_dir() else manifest_beside(output)


def manifest_beside(file: Path) -> Path:
    """Path of the manifest of an output that is, or will be, the file `file`."""
    return file.with_name(file.name + MANIFEST_SUFFIX)


def load_manifest(output: Path) -> Manifest:
    """The manifest of a folder or a file. Raises StateError where there is none or it is not
    FlowCheck's."""
    path = manifest_path(output)
    manifest = decode_manifest(manifest_text(output), str(path))
    return manifest if output.is_dir() else _renamed_with_file(manifest, output)


def manifest_text(output: Path) -> bytes:
    """The bytes of an output's manifest, unchecked. Raises StateError if there is none, or if it is
    not a regular file of at most MANIFEST_MAX_BYTES."""
    return text_at(manifest_path(output), output)


def text_at(path: Path, output: Path) -> bytes:
    """The bytes of the manifest of `output` at `path`, unchecked. Raises StateError if there is
    none, or if it is not a regular file of at most MANIFEST_MAX_BYTES."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise StateError(NO_MANIFEST_FILE(output=output, manifest=path.name))
        if found.st_size > MANIFEST_MAX_BYTES:
            raise StateError(MANIFEST_TOO_LONG(manifest=path, bytes=MANIFEST_MAX_BYTES))
        return path.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(output):
            raise StateError(NO_SUCH_CHECKPOINT(output)) from error
        if isinstance(error, PermissionError):
            uid = os.geteuid()
            told = error.strerror
            why = MANIFEST_FORBIDDEN(
                output=output, user=user_name(uid), manifest=path, error=told, uid=uid
            )
        else:
            why = MANIFEST_UNREADABLE(output=output, manifest=path.name, error=error.strerror)
        raise StateError(why) from error


def decode_manifest(text: bytes, where: str) -> Manifest:
    """Decodes a manifest of any readable format. where: the file's name in errors.

    Raises StateError if the text is no manifest of a readable format, or was changed since it was
    written. Code that the manifest's optimizer settings name is marked as untrusted and never
    called (user_code_trust.py).
    """
    try:
        number = msgspec.json.decode(text, type=_Format).format
        if number not in READABLE_FORMATS:
            raise StateError(FORMAT_UNKNOWN(where=where, format=number, known=READABLE_FORMATS))
        manifest = (
            msgspec.json.decode(text, type=Manifest)
            if number == FORMAT
            else msgspec.json.decode(text, type=_WithSentences).of_today()
        )
    except DECODE_ERRORS as error:
        raise StateError(NO_MANIFEST(where=where, error=error)) from error
    if number > 1 and not _sealed(text):
        raise StateError(MANIFEST_CHANGED(where))
    step_number(manifest.step, where)
    if manifest.optimizer is None:
        return manifest
    return msgspec.structs.replace(manifest, optimizer=with_untrusted_code(manifest.optimizer))


def _renamed_with_file(manifest: Manifest, output: Path) -> Manifest:
    """The manifest of a one-file output, with the file's present name, also where both were renamed
    together. Raises StateError if the manifest lists several files."""
    if manifest.files.keys() == {output.name}:
        return manifest
    if len(manifest.files) != 1:
        count = len(manifest.files)
        raise StateError(
            SEVERAL_FILES(manifest=manifest_path(output), files=count, file=output.name)
        )
    (own,) = manifest.files.values()
    tensors = {
        label: msgspec.structs.replace(
            one, at=tuple((output.name, first, count) for _, first, count in one.at)
        )
        for label, one in manifest.tensors.items()
    }
    return msgspec.structs.replace(manifest, files={output.name: own}, tensors=tensors)


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Writes the manifest atomically. It is on disk when this returns."""
    write_atomically(path, encode_manifest(manifest))


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest's text in the newest format, with its seal."""
    unsealed = msgspec.structs.replace(manifest, format=FORMAT, seal=UNSEALED)
    text = msgspec.json.encode(unsealed, enc_hook=plain_text)
    text = msgspec.json.format(text, indent=1) + b"\n"
    own = hashlib.sha256(text).hexdigest().encode()
    return _SEALED.sub(b'"seal": "' + own + b'"\n}\n', text)


def _sealed(text: bytes) -> bool:
    found = _SEALED.search(text)
    if found is None:
        return False
    whole = text[: found.start(1)] + UNSEALED.encode() + text[found.end(1) :]
    return hashlib.sha256(whole).hexdigest().encode() == found[1]
