"""sha256 of tensors and files, by threads beside whoever writes or reads (hashlib lets go of the
GIL)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flowcheck.errors import StateError
from flowcheck.plane.handle import Closing
from flowcheck.replica.files.manifest import FileSum, Piece, TensorSum

READ_BYTES = 1 << 20
"""Of a file at once: stays in a core's cache until it is hashed."""

TOGETHER = 64
"""Tensors that one thread holds against memory."""

Known = Mapping[tuple[int, int], str]
"""(address, bytes) of a contiguous tensor to its sum."""
Span = tuple[int, int]
"""First byte, bytes."""


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in index order; of a contiguous one over the same memory."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return raw.numpy().data


class Sums(Closing):
    """The sums of an output that is being written."""

    def __init__(self, known: Known | None = None) -> None:
        """known: sums of tensors that were checked already, where they lie in memory."""
        self._known = known or {}
        self._raws: dict[str, list[tuple[str, int, memoryview]]] = {}
        self._pool = ThreadPoolExecutor(max(2, os.cpu_count() or 1), "sums")
        self._tensors: dict[str, tuple[str, tuple[int, ...], tuple[Piece, ...], Future[str]]] = {}
        self._files: dict[str, Future[FileSum]] = {}
        self.names: dict[str, str] = {}
        """Of files that are written under another name than they will have."""
        self.more: dict[str, Any] = {}
        """Fields of the manifest that this format alone has."""

    def close(self) -> None:
        """No sum is made any more."""
        self._pool.shutdown(cancel_futures=True)

    def tensor(
        self, label: str, tensor: torch.Tensor, at: Sequence[Piece], raw: Sequence[memoryview]
    ) -> None:
        """raw: the bytes that are, or will be, at those pieces; not to change before `tensors`."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        checked = self._known.get((tensor.data_ptr(), sum(part.nbytes for part in raw)))
        sums = self._pool.submit(_of_memory, raw, checked)
        for (file, first, _), part in zip(at, raw, strict=True):
            self._raws.setdefault(file, []).append((label, first, part))
        places = tuple((self.names.get(file, file), first, count) for file, first, count in at)
        self._tensors[label] = (dtype, tuple(tensor.shape), places, sums)

    def stream(self, name: str, head: bytes, rest: Sequence[memoryview]) -> None:
        """A file of these bytes, of which those of `rest` are all a tensor's."""
        own = self.names.get(name, name)
        self._files[own] = self._pool.submit(_of_stream, head, rest)

    def file(self, name: str, path: Path) -> None:
        """A file that is whole and whose tensors were all told of."""
        own = self.names.get(name, name)
        spans = [
            (first, count)
            for _, _, at, _ in self._tensors.values()
            for file, first, count in at
            if file == own
        ]
        self._files[own] = self._pool.submit(of_file, path, spans)

    def whole(self, name: str, found: FileSum) -> None:
        """A file whose sums are known."""
        later: Future[FileSum] = Future()
        later.set_result(found)
        self._files[self.names.get(name, name)] = later

    def read_back(self, path_of: Callable[[str], Path]) -> None:
        """Holds every tensor in the files against memory. Raises StateError, which names it, where
        one is another."""
        told = [
            self._pool.submit(_differs, path_of(name), pieces[at : at + TOGETHER])
            for name, pieces in self._raws.items()
            for at in range(0, len(pieces), TOGETHER)
        ]
        if wrong := [label for one in told if (label := one.result())]:
            raise StateError(f"{wrong[0]} does not read back as it was written")

    def files(self) -> dict[str, FileSum]:
        """Waits for them."""
        return {name: found.result() for name, found in self._files.items()}

    def tensors(self) -> dict[str, TensorSum]:
        """Waits for them."""
        return {
            label: TensorSum(dtype, shape, sums.result(), at)
            for label, (dtype, shape, at, sums) in self._tensors.items()
        }


def of_file(path: Path, spans: Iterable[Span]) -> FileSum:
    """The sums of a file with tensors at `spans`. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        descriptor = file.fileno()
        size_bytes = os.fstat(descriptor).st_size
        whole = of_spans(descriptor, [(0, size_bytes)])
        return FileSum(size_bytes, whole, of_spans(descriptor, around(size_bytes, spans)))


def around(size_bytes: int, spans: Iterable[Span]) -> list[Span]:
    """What of a file lies in no span; a span that lies within another counts once."""
    found, at = [], 0
    for first, count in sorted(spans):
        if first > at:
            found.append((at, first - at))
        at = max(at, first + count)
    return [*found, (at, size_bytes - at)] if at < size_bytes else found


def of_spans(descriptor: int, spans: Iterable[Span]) -> str:
    """sha256 of parts of an open file, one behind the other; of what there is of them."""
    whole = hashlib.sha256()
    for first, count in spans:
        feed(whole, descriptor, first, count)
    return whole.hexdigest()


def feed(whole: hashlib._Hash, descriptor: int, first: int, count: int) -> None:
    """A part of an open file, of what there is of it; read, never mapped: a file that is cut short
    meanwhile must not end the process."""
    end, view = first + count, memoryview(bytearray(max(1, min(READ_BYTES, count))))
    while first < end:
        got = os.preadv(descriptor, [view[: min(READ_BYTES, end - first)]], first)
        if not got:
            return
        whole.update(view[:got])
        first += got


def _of_memory(raw: Sequence[memoryview], checked: str | None) -> str:
    if checked is not None:
        return checked
    whole = hashlib.sha256()
    for part in raw:
        whole.update(part)
    return whole.hexdigest()


def _of_stream(head: bytes, rest: Sequence[memoryview]) -> FileSum:
    whole = hashlib.sha256(head)
    for part in rest:
        whole.update(part)
    size_bytes = len(head) + sum(part.nbytes for part in rest)
    return FileSum(size_bytes, whole.hexdigest(), hashlib.sha256(head).hexdigest())


def _differs(path: Path, pieces: Sequence[tuple[str, int, memoryview]]) -> str:
    """The first tensor that the file does not hold as memory does; empty if there is none."""
    buffer = np.empty(READ_BYTES, np.uint8)
    with path.open("rb", buffering=0) as file:
        for label, first, raw in pieces:
            own = np.frombuffer(raw, np.uint8)
            for at in range(0, own.size, READ_BYTES):
                part = own[at : at + READ_BYTES]
                got = os.preadv(file.fileno(), [buffer[: part.size].data], first + at)
                if got != part.size or not np.array_equal(buffer[:got], part):
                    return label
    return ""
