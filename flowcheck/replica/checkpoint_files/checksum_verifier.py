"""Verifies checksums: files against their manifest, and loaded tensors while they are written
again.

A loaded tensor's checksum is verified while the tensor is written to a new file, so that no byte is
read only to verify it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.findings.catalog import checkpoint_damage as damage
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.manifest import MANIFEST, FileSpan, Manifest, TensorSum
from flowcheck.replica.checkpoint_files.sha256 import (
    Sha256,
    Span,
    hash_file_and_spans,
    hash_joined_spans,
    hash_range,
    hash_spans,
)
from flowcheck.untrusted_paths import is_relative

Address = tuple[int, int]
"""(address of the first byte, number of bytes)."""


@dataclass(frozen=True, slots=True)
class ExpectedChecksums:
    """The checksums that a checkpoint's manifest states for tensors mapped from the checkpoint."""

    sums: Mapping[Address, tuple[str, str]] = field(default_factory=dict)
    """{address in memory: (label, sha256)} of contiguous tensors."""
    where: str = ""
    """The checkpoint's name in errors."""
    rest: Callable[[set[str]], None] = lambda met: None
    """Verifies all tensors except those whose labels it is given. Raises StateError."""
    verified: set[str] = field(default_factory=set)
    """Labels of the tensors whose checksums `verify` found right."""

    def verify(self, address: Address, own: str) -> None:
        """Compares `own`, the sha256 of the tensor at `address`, with the manifest. Raises
        StateError if they differ. An address that the manifest does not know passes."""
        label, wanted = self.sums.get(address, ("", own))
        if wanted != own:
            fault = damage.IN_PART(part=label, why=damage.TENSOR_CHANGED())
            raise StateError(damage.NOT_AS_WRITTEN(checkpoint=self.where, fault=fault))
        if label:
            self.verified.add(label)

    def end(self) -> None:
        """Verifies the tensors that were not written to a new file. Raises StateError."""
        self.rest(self.verified)


NO_EXPECTED_CHECKSUMS = ExpectedChecksums()


THREAD_SHARE_BYTES = 64 << 20
"""Bytes of tensors that one thread sums, two at a time. A choice: more balances threads worse, less
starts more work items."""


@dataclass(frozen=True, slots=True)
class FileFault:
    """A difference between a file and its manifest."""

    file: str
    why: Finding
    tensor: str = ""
    """Label of the damaged tensor; empty where the fault is in no tensor."""

    @property
    def finding(self) -> Finding:
        """The fault together with the file and the tensor it is in."""
        if not self.tensor:
            return damage.IN_PART(part=self.file, why=self.why)
        return damage.IN_TENSOR(tensor=self.tensor, why=self.why, file=self.file)

    def __str__(self) -> str:
        return str(self.finding)


def verify_files(
    root: Path, manifest: Manifest, *, whole_files: bool = True, later: Collection[str] = ()
) -> list[FileFault]:
    """Compares the files below `root` with their manifest. Returns the differences; [] if there are
    none.

    whole_files: also verifies the sha256 of each whole file, as sha256sum prints it. Without it
    every byte is still read once, except the tensors in `later`, which are not read.
    """
    sizes, faults = _sizes(root, manifest)
    held = {fault.file for fault in faults}
    laid = _laid(manifest, sizes)
    taken = _taken(manifest)
    with ThreadPoolExecutor(max(2, os.cpu_count() or 1), "check") as pool:
        separate = {
            label: pool.submit(_of_pieces, root, manifest.tensors[label].at)
            for label in laid.separate
            if label not in later
        }
        told = {
            name: pool.submit(
                _file_told, root / name, name, manifest, spans, taken.get(name, []), whole_files
            )
            for name, spans in laid.places.items()
            if name not in held and sizes[name]
        }
        parts = [
            (list(group), pool.submit(_spans_told, root / name, list(group.values())))
            for name, spans in laid.places.items()
            if name not in told or not whole_files
            for group in _groups({one: at for one, at in spans.items() if one not in later})
        ]
        found = {label: one.result() for label, one in separate.items()}
        for labels, summed in parts:
            found.update(zip(labels, summed.result(), strict=False))
    why: dict[str, Finding | None] = {}
    for name, result in told.items():
        why[name], sums = result.result()
        found.update(sums)
    faults += _faults(manifest, laid, found, why)
    return [
        fault
        for fault in faults
        if fault.tensor not in later or not fault.why.is_any_of(damage.TENSOR_CHANGED)
    ]


def unlisted_files(output: Path, manifest: Manifest) -> list[str]:
    """Names of files in the output's folder that the manifest does not list. A loader that reads
    every file in the folder would read them. The manifest itself and hidden files are not among
    them."""
    if not output.is_dir():
        return []
    listed = {*(manifest.files or manifest.sha256), MANIFEST}
    found = (path for path in output.rglob("*") if not path.is_dir())
    names = (path.relative_to(output).as_posix() for path in found)
    return sorted(name for name in names if name not in listed and not name.startswith("."))


def _sizes(root: Path, manifest: Manifest) -> tuple[dict[str, int], list[FileFault]]:
    """(bytes of each file, faults of the files that are missing or have a wrong size)."""
    faults = []
    sizes: dict[str, int] = {}
    wanted = dict(manifest.files) or dict.fromkeys(manifest.sha256)
    for name, want in wanted.items():
        found = _size(root, name)
        sizes[name] = found or 0
        if found is None:
            faults.append(FileFault(name, damage.FILE_MISSING()))
        elif want is not None and found != want.bytes:
            faults.append(FileFault(name, damage.FILE_SIZE(bytes=found, written=want.bytes)))
    return sizes, faults


@dataclass(frozen=True, slots=True)
class _Laid:
    """Where the tensors lie in the files."""

    places: dict[str, dict[str, Span]]
    """{file: {label: span}} of tensors in one piece; ascending, without overlap."""
    separate: list[str] = field(default_factory=list)
    """Labels of tensors without bytes, of several pieces, or that overlap another tensor."""
    wrong: dict[str, FileFault] = field(default_factory=dict)
    """{label: fault} of tensors whose stated place is outside the files."""


def _laid(manifest: Manifest, sizes: Mapping[str, int]) -> _Laid:
    laid = _Laid({name: {} for name in sizes})
    ends = dict.fromkeys(sizes, 0)
    ordered = sorted(manifest.tensors.items(), key=lambda one: one[1].at)
    for label, one in ordered:
        fault = _misplaced(label, one, sizes)
        if fault is not None:
            laid.wrong[label] = fault
            continue
        if len(one.at) == 1 and one.at[0][1] >= ends[one.at[0][0]]:
            name, first, count = one.at[0]
            laid.places[name][label] = (first, count)
            ends[name] = first + count
        else:
            laid.separate.append(label)
    return laid


def _misplaced(label: str, one: TensorSum, sizes: Mapping[str, int]) -> FileFault | None:
    for name, first, count in one.at:
        held = sizes.get(name)
        if held is None:
            return FileFault(name, damage.NOT_LISTED(), label)
        if first < 0 or count < 0 or first + count > held:
            return FileFault(name, damage.CUT_OFF(), label)
    return None


def _groups(spans: Mapping[str, Span]) -> Iterator[dict[str, Span]]:
    group: dict[str, Span] = {}
    held = 0
    for label, span in spans.items():
        group[label] = span
        held += span[1]
        if held >= THREAD_SHARE_BYTES and len(group) > 1:
            yield group
            group, held = {}, 0
    if group:
        yield group


def _file_told(
    path: Path,
    name: str,
    manifest: Manifest,
    spans: Mapping[str, Span],
    taken: Sequence[Span],
    whole_files: bool,
) -> tuple[Finding | None, dict[str, str]]:
    """Verifies one file. Returns (the fault or None, {label: sha256} of its tensors if
    `whole_files`, else {})."""
    want = manifest.files.get(name)
    try:
        with path.open("rb", buffering=0) as file:
            number = file.fileno()
            size_bytes = os.fstat(number).st_size
            if want is None:
                found = hash_joined_spans(number, [(0, size_bytes)])
                same = found == manifest.sha256[name]
                return None if same else damage.FILE_CHANGED(), {}
            around = hash_joined_spans(number, _around(size_bytes, taken))
            why = None if around == want.around else damage.AROUND_CHANGED()
            if not whole_files:
                return why, {}
            whole, sums = hash_file_and_spans(number, size_bytes, list(spans.values()))
            if why is None and whole != want.sha256:
                why = damage.FILE_CHANGED()
            return why, dict(zip(spans, sums, strict=True))
    except OSError as error:
        return damage.FILE_UNREADABLE(error.strerror), {}


def _taken(manifest: Manifest) -> dict[str, list[Span]]:
    """{file: spans} that the manifest states for tensors, right or wrong."""
    taken: dict[str, list[Span]] = {}
    for one in manifest.tensors.values():
        for name, first, count in one.at:
            taken.setdefault(name, []).append((first, count))
    return taken


def _around(size_bytes: int, taken: Sequence[Span]) -> list[Span]:
    """The spans of a file that belong to no tensor. `taken`: spans of tensors; they may overlap."""
    found, at = [], 0
    for first, count in sorted(taken):
        if first > at:
            found.append((at, min(first, size_bytes) - at))
        at = min(size_bytes, max(at, first + count))
    return [*found, (at, size_bytes - at)] if at < size_bytes else found


def _spans_told(path: Path, spans: list[Span]) -> list[str]:
    """The sha256 of each span of a file; [] if the file cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            return hash_spans(file.fileno(), spans)
    except OSError:
        return []


def _of_pieces(root: Path, pieces: Sequence[FileSpan]) -> str:
    """The sha256 of a tensor that consists of several pieces; "" if one cannot be read."""
    whole = Sha256()
    try:
        for name, first, count in pieces:
            with (root / name).open("rb", buffering=0) as file:
                hash_range(whole, file.fileno(), first, count)
    except OSError:
        return ""
    return whole.hexdigest()


def _faults(
    manifest: Manifest, laid: _Laid, found: Mapping[str, str], why: Mapping[str, Finding | None]
) -> list[FileFault]:
    """The faults of tensors, then of files. A file's fault is left out where a fault of one of its
    tensors says more."""
    faults = []
    for label, one in manifest.tensors.items():
        if label in laid.wrong:
            faults.append(laid.wrong[label])
        elif found.get(label) != one.sha256:
            faults.append(FileFault(one.at[0][0] if one.at else "", damage.TENSOR_CHANGED(), label))
    named = {one.file for one in faults}
    for name, fault in why.items():
        if fault is not None and (name not in named or fault.is_any_of(damage.AROUND_CHANGED)):
            faults.append(FileFault(name, fault))
    return faults


def _size(root: Path, name: str) -> int | None:
    """Bytes of a regular file below `root`; None if there is none, or if `name` leads outside."""
    if not is_relative(name):
        return None
    try:
        found = (root / name).stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
