"""Verifies checksums: files against their manifest, and loaded tensors while they are written
again.

A tensor's checksum is checked where the tensor is written, so that no byte is read for that alone.
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
"""First byte's, bytes."""


@dataclass(frozen=True, slots=True)
class ExpectedChecksums:
    """What a checkpoint's manifest says of the tensors that were mapped from it."""

    sums: Mapping[Address, tuple[str, str]] = field(default_factory=dict)
    """A contiguous tensor's label and its sum, by where it lies."""
    where: str = ""
    """The checkpoint, to the user."""
    rest: Callable[[set[str]], None] = lambda met: None
    """Checks what was not met. Raises StateError."""
    verified: set[str] = field(default_factory=set)

    def verify(self, address: Address, own: str) -> None:
        """Raises StateError where the tensor that lies there is to have another sum."""
        label, wanted = self.sums.get(address, ("", own))
        if wanted != own:
            fault = damage.IN_PART(part=label, why=damage.TENSOR_CHANGED())
            raise StateError(damage.NOT_AS_WRITTEN(checkpoint=self.where, fault=fault))
        if label:
            self.verified.add(label)

    def end(self) -> None:
        """Checks what was written nowhere. Raises StateError."""
        self.rest(self.verified)


NO_EXPECTED_CHECKSUMS = ExpectedChecksums()


TOGETHER_BYTES = 64 << 20
"""Bytes of tensors that one thread sums, two at a time. A choice: more balances threads worse, less
starts more work items."""


@dataclass(frozen=True, slots=True)
class FileFault:
    """Something that is not as the manifest says."""

    file: str
    why: Finding
    tensor: str = ""
    """Its label; empty where it is of no tensor."""

    @property
    def finding(self) -> Finding:
        """With where it is."""
        if not self.tensor:
            return damage.IN_PART(part=self.file, why=self.why)
        return damage.IN_TENSOR(tensor=self.tensor, why=self.why, file=self.file)

    def __str__(self) -> str:
        return str(self.finding)


def verify_files(
    root: Path, manifest: Manifest, *, whole_files: bool = True, later: Collection[str] = ()
) -> list[FileFault]:
    """What of the files below `root` is not as the manifest says, in its order; [] if nothing.

    whole_files: also the sums that sha256sum prints; without them every byte is still read once,
    but for those of the tensors in `later`, which are not read.
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
        if fault.tensor not in later or not fault.why.of(damage.TENSOR_CHANGED)
    ]


def unlisted_files(output: Path, manifest: Manifest) -> list[str]:
    """Files in an output's folder that the manifest does not list, nor is: loaders that take all
    that lies there would take them. Hidden ones are none, but for those the manifest lists."""
    if not output.is_dir():
        return []
    listed = {*(manifest.files or manifest.sha256), MANIFEST}
    found = (path for path in output.rglob("*") if not path.is_dir())
    names = (path.relative_to(output).as_posix() for path in found)
    return sorted(name for name in names if name not in listed and not name.startswith("."))


def _sizes(root: Path, manifest: Manifest) -> tuple[dict[str, int], list[FileFault]]:
    """(bytes of each file, those that are not there with their size)."""
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
    """Where tensors lie."""

    places: dict[str, dict[str, Span]]
    """By file and label, ascending, none in another."""
    separate: list[str] = field(default_factory=list)
    """Of none, of several pieces, or within another."""
    wrong: dict[str, FileFault] = field(default_factory=dict)
    """By label: nowhere in these files."""


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
        if held >= TOGETHER_BYTES and len(group) > 1:
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
    """(what is wrong with a file, sums of its tensors where all of it was read at once)."""
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
    """Where tensors lie, or are said to, by file."""
    taken: dict[str, list[Span]] = {}
    for one in manifest.tensors.values():
        for name, first, count in one.at:
            taken.setdefault(name, []).append((first, count))
    return taken


def _around(size_bytes: int, taken: Sequence[Span]) -> list[Span]:
    """What of a file lies in no tensor; a tensor that lies within another counts once."""
    found, at = [], 0
    for first, count in sorted(taken):
        if first > at:
            found.append((at, min(first, size_bytes) - at))
        at = min(size_bytes, max(at, first + count))
    return [*found, (at, size_bytes - at)] if at < size_bytes else found


def _spans_told(path: Path, spans: list[Span]) -> list[str]:
    """Sums of parts of a file; none where it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            return hash_spans(file.fileno(), spans)
    except OSError:
        return []


def _of_pieces(root: Path, pieces: Sequence[FileSpan]) -> str:
    """The sum of a tensor that lies in several places; empty where one cannot be read."""
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
    """Those of tensors, then those of files, of which a tensor's own says more."""
    faults = []
    for label, one in manifest.tensors.items():
        if label in laid.wrong:
            faults.append(laid.wrong[label])
        elif found.get(label) != one.sha256:
            faults.append(FileFault(one.at[0][0] if one.at else "", damage.TENSOR_CHANGED(), label))
    named = {one.file for one in faults}
    for name, fault in why.items():
        if fault is not None and (name not in named or fault.of(damage.AROUND_CHANGED)):
            faults.append(FileFault(name, fault))
    return faults


def _size(root: Path, name: str) -> int | None:
    """Bytes of a file; None of what is none, whatever it is, or has a name that none can have."""
    if not is_relative(name):
        return None
    try:
        found = (root / name).stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
