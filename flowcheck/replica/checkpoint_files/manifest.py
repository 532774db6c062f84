"""The manifest of an output (manifest.json): its step, files, tensors and their sha256; written
last.

Sums are sha256. A tensor's is of its bytes as they lie in the files, so that whoever can read bytes
can check it; `around` is of a file's bytes that belong to no tensor (headers, what pickles hold).

Formats: 1 had no sums of tensors, and those of files in `sha256`. 2 had sentences in `evidence` and
`assumed`, and one in `lacks`. 3 has findings there: code, arguments, and the sentence for people.
All three are read. A release that knows 1 and 2 alone refuses a manifest of format 3 as no
manifest of FlowCheck's, which names one of these fields: it restores, serves, downloads and
replaces no checkpoint of format 3, and takes none away but one that was never finished. So update
the readers first.
"""

from __future__ import annotations

import hashlib
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
    MANIFEST_TOO_LONG,
    MANIFEST_UNREADABLE,
    NO_MANIFEST,
    NO_MANIFEST_FILE,
    SEVERAL_FILES,
)
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.finding import Finding
from flowcheck.replica.optimizer.user_code_trust import with_untrusted_code
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.user_code import plain_text
from flowcheck.step_numbers import Step
from flowcheck.untrusted_paths import step_number

FORMAT = 3
READABLE_FORMATS = (1, 2, 3)
MANIFEST = "manifest.json"
MANIFEST_SUFFIX = ".manifest.json"
"""Behind the name of an output that is one file."""
MANIFEST_MAX_BYTES = 256 << 20
"""Bytes of a manifest: a tensor takes some 300, so that 890,000 tensors fit. What is longer is no
manifest, and is not read."""


class CheckpointKind(StrEnum):
    """What of a trainer's state an output holds; the texts are those of the file."""

    FULL = "parameters and optimizer state"
    PARAMETERS_ONLY = "parameters, no optimizer state"


FULL, PARAMETERS_ONLY = CheckpointKind.FULL, CheckpointKind.PARAMETERS_ONLY
FileSpan = tuple[str, int, int]
"""File relative to the manifest's folder, first byte, bytes."""


class FileSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file."""

    bytes: int
    sha256: str
    around: str


class TensorSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor; its bytes are those of the pieces, one behind the other."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    at: tuple[FileSpan, ...]


class _SameInAllFormats(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an output is."""

    format: int = FORMAT
    form: str = "flowcheck"
    """Name of the checkpoint format (vault/checkpoint_formats/format_registry.py)."""
    step: Step
    digest: str
    """`Replica.digest` of this step, see state_digest.py; empty where no replica gave it."""
    torch_version: str
    """Whose arithmetic applied the steps."""
    kind: CheckpointKind = CheckpointKind.FULL
    older: dict[str, int] = {}
    """Parameters that are of another step than `step`, and which."""
    layout: Layout | None = None
    """Of the native form, as `optimizer`."""
    optimizer: OptimizerConfig | None = None
    sha256: dict[str, str] = {}
    """Of format 1: file name to sha256 of its content."""
    files: dict[str, FileSum] = {}
    tensors: dict[str, TensorSum] = {}
    """By part and name: model/NAME, optimizer/NAME/STATE; of torch and dcp by their own keys."""
    plain: dict[str, Any] = {}
    """Of the native form: what is no tensor (non_tensor_state.py)."""


class Manifest(_SameInAllFormats, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an output is and what it rests on."""

    resume_caveats: tuple[Finding, ...] = msgspec.field(default=(), name="lacks")
    """Why a trainer does not go on from it as if nothing had happened; (): it does."""
    evidence: tuple[Finding, ...] = ()
    """What was seen on the wire that the caller rests on."""
    assumed: tuple[Finding, ...] = ()
    """What no observation could have contradicted."""
    seal: str = ""
    """sha256 of this file with zeros here. The last field; format 1 had none."""


class _WithSentences(_SameInAllFormats, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of formats 1 and 2."""

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
    """Told first: what the other fields are depends on it."""

    format: int


UNSEALED = "0" * 64
_SEALED = re.compile(rb'"seal": "([0-9a-f]{64})"\n}\n\Z')


def manifest_path(output: Path) -> Path:
    """Where the manifest of an output lies."""
    return output / MANIFEST if output.is_dir() else manifest_beside(output)


def manifest_beside(file: Path) -> Path:
    """Where that of an output lies which is one file, or is to be."""
    return file.with_name(file.name + MANIFEST_SUFFIX)


def load_manifest(output: Path) -> Manifest:
    """The manifest of a folder or a file. Raises StateError where there is none or it is not
    FlowCheck's."""
    path = manifest_path(output)
    manifest = decode_manifest(manifest_text(output), str(path))
    return manifest if output.is_dir() else _renamed_with_file(manifest, output)


def manifest_text(output: Path) -> bytes:
    """What lies there, as it is. Raises StateError where nothing does, or no file of this kind."""
    return text_at(manifest_path(output), output)


def text_at(path: Path, output: Path) -> bytes:
    """The text of `output`'s manifest at `path`. Raises StateError as `manifest_text`."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise StateError(NO_MANIFEST_FILE(output=output, manifest=path.name))
        if found.st_size > MANIFEST_MAX_BYTES:
            raise StateError(MANIFEST_TOO_LONG(manifest=path, bytes=MANIFEST_MAX_BYTES))
        return path.read_bytes()
    except OSError as error:
        unreadable = MANIFEST_UNREADABLE(output=output, manifest=path.name, error=error.strerror)
        raise StateError(unreadable) from error


def decode_manifest(text: bytes, where: str) -> Manifest:
    """where: of the text, for errors. Raises StateError for what is no manifest of a format that is
    read here, or not as it was written. Code that its optimizer names is Told: never called."""
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
    """What a manifest beside a file says of that file, also where both were renamed: never of one
    that has the old name. Raises StateError where it is of several."""
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
    """Whole, and on disk when this returns."""
    write_atomically(path, encode_manifest(manifest))


def encode_manifest(manifest: Manifest) -> bytes:
    """Its text in the newest format, sealed."""
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
