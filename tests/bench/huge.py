"""2 MiB pages for a bench, where the machine gives them by itself."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def huge_memory(need_bytes: int) -> Iterator[Path | None]:
    """A folder of a tmpfs of its own whose files get 2 MiB pages as the kernel finds them, gone
    afterwards; None where it cannot be mounted (without root, or in a container)."""
    with tempfile.TemporaryDirectory(prefix="flowcheck-bench-") as name:
        options = f"huge=within_size,mode=700,size={need_bytes}"
        command = ["mount", "-t", "tmpfs", "-o", options, "flowcheck-bench", name]
        if subprocess.run(command, capture_output=True, timeout=60, check=False).returncode:
            yield None
            return
        try:
            yield Path(name)
        finally:
            # Views of a state may outlive it: its memory goes with the last of them.
            subprocess.run(["umount", "--lazy", name], timeout=60, check=True)
