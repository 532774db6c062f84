"""Loads a torch.save file of the trainer without running code in it; an error says what the file
is instead."""

from __future__ import annotations

import argparse
import io
import os
import warnings
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import StateError
from flowcheck.findings.catalog import unreadable_checkpoints as findings
from flowcheck.findings.finding import Entry, Finding
from flowcheck.foreign_messages import TORCH_NOT_ALLOWED
from flowcheck.untrusted_paths import refuse_special_file

ZIP_MAGIC = b"PK\x03\x04"
"""Of the archives torch.save writes."""
STRUCTURE_ERRORS = (
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    MemoryError,
)
"""What Python and torch raise for values of another kind."""
TOLD_MAX = 500
"""Characters of such an error that are shown. A choice of layout."""
PARTS_MAX = 1 << 20
"""Objects that a file may make beside four for each of its bytes. A choice: stops a file made to
exhaust memory."""
EXPANDED_BYTES_MAX = 1 << 30
"""Bytes. Tensors that repeat their elements (masks) may be of so many more than their file. A
choice: stops a file made to exhaust memory."""
TEXT_BYTES_MAX = 256 << 20
"""Bytes of a text file that is read into memory. A choice that bounds memory."""
_OF_TORCHSCRIPT = "constants.pkl"
"""A record that torch.jit.save writes and torch.save does not: torch/serialization.py tells the two
apart by it (_is_torchscript_zip)."""


def safe_torch_load(path: Path, more: Sequence[Any] = ()) -> Any:
    """What torch.save put there, of tensors and plain values. more: classes that may be made as
    well (torch's safe_globals). Raises StateError, which says what the file is instead."""
    refuse_special_file(path)
    try:
        with path.open("rb") as file:
            begin = file.read(len(ZIP_MAGIC))
            size_bytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise StateError(findings.CANNOT_BE_READ(file=path, error=error.strerror)) from error
    if not begin:
        raise StateError(findings.EMPTY(path))
    if begin == ZIP_MAGIC and not zipfile.is_zipfile(path):
        raise StateError(findings.END_MISSING(path))
    mapped = begin == ZIP_MAGIC  # a private mapping: the file never changes
    with only_allowed([argparse.Namespace, *more]):  # which only holds values
        return _loaded(path, size_bytes, str(path), mmap=mapped, archive=mapped)


def safe_torch_load_bytes(raw: bytes, where: str) -> Any:
    """As `safe_torch_load`, of an archive in memory. where: of it, for errors."""
    with only_allowed(()):
        return _loaded(io.BytesIO(raw), len(raw), where, archive=True)


@contextmanager
def only_allowed(kinds: Sequence[Any]) -> Iterator[None]:
    """Of torch's safe_globals these alone: not what a library in this process allowed for files of
    its own (megatron-core's numpy)."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(list(kinds))
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _loaded(
    file: Path | io.BytesIO, size_bytes: int, where: str, *, archive: bool, **how: Any
) -> Any:
    """Raises StateError for what torch refuses, and for what grows when it is read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch guesses aloud what a foreign file may be
            if archive:
                _refuse_packed(file, size_bytes)
            tree = torch.load(file, map_location="cpu", weights_only=True, **how)
    except Exception as error:  # torch raises whatever its unpickler meets
        why = _why_refused(error, file if archive else None)
        raise StateError(findings.IN_FILE(file=where, why=why)) from error
    refuse_expanded(tree, size_bytes, where)
    return tree


def text_of(path: Path) -> bytes:
    """Of a small file of a checkpoint. Raises OSError, StateError where it is too long for one."""
    refuse_special_file(path)
    with path.open("rb") as file:
        found = file.read(TEXT_BYTES_MAX + 1)
    if len(found) > TEXT_BYTES_MAX:
        raise StateError(findings.TEXT_TOO_LONG(file=path, limit=TEXT_BYTES_MAX))
    return found


def _refuse_packed(file: Path | io.BytesIO, size_bytes: int) -> None:
    """torch.save packs nothing: a record that is may be a thousand times as long as the file, and
    one place may be told as many records."""
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
    if any(one.compress_type != zipfile.ZIP_STORED for one in records):
        raise ValueError("its records are packed")
    if sum(one.file_size for one in records) > size_bytes:
        raise ValueError("its records are longer than the file")
    if isinstance(file, io.BytesIO):
        file.seek(0)


def refuse_expanded(tree: Any, size_bytes: int, where: str) -> None:
    """Raises StateError where a tree is larger than a file of so many bytes can hold: parts that
    are referenced again and again, a part within itself, tensors that repeat one element."""
    counting = _Counting()
    try:
        counting.of(tree)
    except RecursionError:
        counting.wrong = findings.PARTS_TOO_DEEP
    if counting.wrong is not None:
        raise StateError(counting.wrong(where))
    if counting.parts > PARTS_MAX + 4 * size_bytes:
        many = {"parts": counting.parts, "bytes": size_bytes}
        raise StateError(findings.PARTS_REPEAT(file=where, **many))
    if counting.elements_bytes > EXPANDED_BYTES_MAX + size_bytes:
        large = {"tensor_bytes": counting.elements_bytes, "bytes": size_bytes}
        raise StateError(findings.TENSORS_EXPAND(file=where, **large))


class _Counting:
    """How large a tree is for whoever walks through it, found by looking at each part once."""

    def __init__(self) -> None:
        self.wrong: Entry | None = None
        self.elements_bytes = 0
        self.parts = 0
        self._known: dict[int, tuple[int, Any]] = {}

    def of(self, tree: Any) -> None:
        self.parts = self._of(tree)

    def _of(self, node: Any) -> int:
        inside = _inside(node)
        if inside is None and not isinstance(node, torch.Tensor):
            return 1
        known = self._known.get(id(node))
        if known is not None:
            if known[0] == 0:
                self.wrong = findings.PART_HOLDS_ITSELF
            return known[0]
        self._known[id(node)] = (0, node)
        if inside is None:
            self.elements_bytes += node.numel() * node.element_size()
        count = 1 + sum(self._of(one) for one in inside or ())
        self._known[id(node)] = (count, node)
        return count


def _inside(node: Any) -> Collection[Any] | None:
    """The parts of a part; None of what has none."""
    if isinstance(node, dict):
        return node.values()
    if isinstance(node, list | tuple | set | frozenset):
        return node
    if isinstance(node, torch.Tensor | type):
        return None
    own: dict[str, Any] | None = getattr(node, "__dict__", None)
    return None if own is None else own.values()


@contextmanager
def structure_errors_as_state_errors(where: str) -> Iterator[None]:
    """Around code that looks into a tree from a trainer's file, which may hold values of any kind.
    Raises StateError, which names `where`, for whatever error comes of that."""
    try:
        yield
    except STRUCTURE_ERRORS as error:
        told = f"{type(error).__name__}: {error}"[:TOLD_MAX]
        raise StateError(findings.PARTS_DO_NOT_FIT(file=where, error=told)) from error


def _why_refused(error: Exception, archive: Path | io.BytesIO | None) -> Finding:
    """What a file is that torch refuses with this error. archive: it, where it is a zip archive."""
    other = TORCH_NOT_ALLOWED.search(str(error))
    if other is not None:
        return findings.WOULD_RUN_CODE(other[1])
    if archive is None:
        return findings.NOT_TORCH_SAVE()
    return findings.TORCHSCRIPT() if _is_torchscript(archive) else findings.OTHER_ZIP()


def _is_torchscript(archive: Path | io.BytesIO) -> bool:
    try:
        with zipfile.ZipFile(archive) as records:
            return any(name.partition("/")[2] == _OF_TORCHSCRIPT for name in records.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False
