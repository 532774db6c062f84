"""Ground truth of every collective (kind, size, sha256 of its result), one JSON line each."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any, ClassVar, TextIO

import torch


class GroundTruthLog:
    """Ground truth of one process: `rank<global rank>.jsonl` in the folder; without a folder
    nothing is written."""

    _files: ClassVar[dict[Path, TextIO]] = {}
    _lock = threading.Lock()

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def wanted(self) -> bool:
        """Whether a log is written; if not, digests can be skipped."""
        return self._folder is not None

    def write(self, rank: int, result: torch.Tensor | None, **facts: Any) -> None:
        """Writes a line with `facts` and the sha256 of `result` (flat tensor); None: this rank has
        no result."""
        if self._folder is None:
            return
        if result is not None:
            memory = result.view(torch.uint8).numpy().data
            facts["sha256"] = hashlib.sha256(memory).hexdigest()
        path = self._folder / f"rank{rank}.jsonl"
        with self._lock:
            if path not in self._files:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._files[path] = path.open("a", buffering=1)
            self._files[path].write(json.dumps(facts) + "\n")
