"""A file that is summed while others write to it: torch.save hands over a tensor's own memory, so
that what comes is known by its address."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import numpy as np

from flowcheck.replica.files.manifest import FileSum
from flowcheck.replica.files.sums import Span

FLUSH_BYTES = 64 << 20
"""The kernel is told to write so much at a time, not all of it at the end."""


class Tee(io.RawIOBase):
    """Writes to `file` from its beginning. tensors: (address, bytes) of memory that stays as it is
    until `done`, to a label; one that is met is taken out, whoever else looks there."""

    def __init__(self, file: IO[bytes], tensors: MutableMapping[tuple[int, int], str]) -> None:
        super().__init__()
        self._file, self._tensors = file, tensors
        self._whole, self._around = hashlib.sha256(), hashlib.sha256()
        self._thread = ThreadPoolExecutor(1, "tee")
        self._at = self._flushed = 0
        self.found: dict[str, Span] = {}
        """Where each tensor was written."""

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, part: Any, /) -> int:
        view = memoryview(part).cast("B")
        label = None
        if view.nbytes:
            own = (int(np.frombuffer(view, np.uint8).ctypes.data), view.nbytes)
            label = self._tensors.pop(own, None)
        if label is not None:
            self.found[label] = (self._at, view.nbytes)
            self._thread.submit(self._whole.update, view)
        else:
            kept = bytes(view)  # the writer's own buffer: it is another's after this call
            self._thread.submit(self._both, kept)
        done = 0
        while done < view.nbytes:
            done += self._file.write(view[done:])
        self._at += view.nbytes
        if self._at - self._flushed >= FLUSH_BYTES:
            self._begin_flush()
        return view.nbytes

    def done(self) -> FileSum:
        """The sums of all that was written."""
        self._thread.shutdown()
        return FileSum(self._at, self._whole.hexdigest(), self._around.hexdigest())

    def _both(self, part: bytes) -> None:
        self._whole.update(part)
        self._around.update(part)

    def _begin_flush(self) -> None:
        count = self._at - self._flushed
        os.posix_fadvise(self._file.fileno(), self._flushed, count, os.POSIX_FADV_DONTNEED)
        self._flushed = self._at
